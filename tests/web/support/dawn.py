"""WebGPU in Node.js: the npm package ``webgpu``, which is Dawn, on a software GPU."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.web.support.node import Node, find_node

_SWIFTSHADER = Path("/usr/lib/chromium/vk_swiftshader_icd.json")
_RESOLVE = "console.log(require.resolve('webgpu'))"
# Give the modules the globals of a browser, and load the model of the site at value.address.
_LOAD = """
const { create, globals } = await import(value.webgpu);
Object.assign(globalThis, globals);
const navigator = { gpu: create([]) };
const { fetchSite, loadModel } = await use("load");
const { makePlan } = await use("plan");
const site = await fetchSite(value.address);
const quiet = { navigator, onStage() {}, onBytes() {} };
const session = await loadModel(value.address, site, makePlan(site), quiet);
"""


def find_dawn() -> str:
    """Return the address of the package's module, or skip the test."""
    finished = subprocess.run([find_node(), "-e", _RESOLVE], capture_output=True, text=True, check=False)
    if finished.returncode:
        pytest.skip("node finds no package webgpu; npm install webgpu, and set NODE_PATH to its node_modules")
    return Path(finished.stdout.strip()).as_uri()


def vulkan_environment() -> Mapping[str, str]:
    """Return an environment in which Vulkan finds a driver, or skip the test."""
    if "VK_ICD_FILENAMES" in os.environ:
        return os.environ
    if not _SWIFTSHADER.exists():
        pytest.skip(f"there is no {_SWIFTSHADER}; apt-get install chromium, or set VK_ICD_FILENAMES to a driver's file")
    return {**os.environ, "VK_ICD_FILENAMES": str(_SWIFTSHADER)}


def run_model(folder: Path, address: str, script: str, value: Any) -> Any:
    """Load the model of the site ``folder``, served at ``address``, and return what ``script`` returns as JSON data.

    The script finds ``session`` and ``value.given``, which is ``value``.
    """
    webgpu, environment = find_dawn(), vulkan_environment()
    node = Node(find_node(), folder, environment)
    return node.run(_LOAD + script, {"webgpu": webgpu, "address": address, "given": value}, seconds=600)
