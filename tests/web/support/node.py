"""Run the JavaScript runtime of a site in Node.js, without a browser."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from edgedec.runtime.web.runtime_files import write_runtime


class Node:
    """Node.js with the modules of a site.

    Parameters:
        program: path of node.
        folder: folder of a site, or an empty one, which gets the runtime.
        environment: environment of the processes; None: this process's.
    """

    def __init__(self, program: str, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.program, self.folder, self._environment = program, folder, environment
        if not (folder / "page.js").exists():
            write_runtime(folder)
        (folder / "package.json").write_text('{"type": "module"}', "utf-8")

    def run(self, script: str, value: Any = None, *, seconds: float = 120.0) -> Any:
        """Return what the body of an asynchronous function returns, as JSON data. ``value`` is its only argument.

        The script may write ``await use("NAME")`` for a module of ``runtime/``.
        """
        program = (
            'import { readFileSync, writeFileSync } from "node:fs";\n'
            "const use = (name) => import(`./runtime/${name}.js`);\n"
            f"const run = async (value) => {{\n{script}\n}};\n"
            'const result = await run(JSON.parse(readFileSync(0, "utf-8")));\n'
            'writeFileSync(new URL("result.json", import.meta.url), JSON.stringify(result ?? null));\n'
            "process.exit(0);\n"
        )
        file = self.folder / "test.js"
        file.write_text(program, "utf-8")
        finished = subprocess.run(
            [self.program, str(file)],
            input=json.dumps(value),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            env=self._environment,
        )
        assert finished.returncode == 0, finished.stderr
        return json.loads((self.folder / "result.json").read_text("utf-8"))


def find_node() -> str:
    """Return the path of node, or skip the test."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node; install Node.js")
    return node
