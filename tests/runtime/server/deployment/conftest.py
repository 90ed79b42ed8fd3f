"""Provide a system in a folder, in which the steps of the container file were carried out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgedec.runtime.server import deployment
from tests.runtime.server.support.containerfile import Image, build, parse

ROOT = Path(__file__).parents[4]
BUILD_ENVIRONMENT = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels", "DEBIAN_FRONTEND": "noninteractive"}


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the root folder of the system that the container file begins with.

    The variable CONTAINER_BASE names one that is there already: debootstrap --variant=minbase bookworm FOLDER.
    """
    if os.geteuid() or shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("chroot needs root, and unshare and ip")
    if there := os.environ.get("CONTAINER_BASE"):
        return Path(there)
    if shutil.which("debootstrap") is None:
        pytest.skip("debootstrap is not installed")
    folder = tmp_path_factory.mktemp("base") / "root"
    subprocess.run(["debootstrap", "--variant=minbase", "bookworm", folder], check=True, stdout=subprocess.DEVNULL)
    return folder


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of the packages that edgedec and its build need; in the chroot there is no package index."""
    folder = tmp_path_factory.mktemp("wheels")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = [
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["serve"],
        *project["build-system"]["requires"],
    ]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--only-binary", ":all:", "-d", folder, *needed], check=True
    )
    return folder


@pytest.fixture(scope="session")
def built(base: Path, wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """Return the image of the container file."""
    work = tmp_path_factory.mktemp("roots")
    root = work / "base"
    subprocess.run(["cp", "-a", "--reflink=auto", base, root], check=True)
    shutil.copytree(wheels, root / "wheels")
    steps = parse((Path(deployment.__path__[0]) / "Containerfile").read_text())
    yield build(steps, root, ROOT, work, env=BUILD_ENVIRONMENT)
    shutil.rmtree(work)
