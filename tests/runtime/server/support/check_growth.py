"""Measure what the check of a form adds to a process at most: ``python -m tests.runtime.server.support.check_growth``.

The standard input has the kind and the source of the form as JSON. The first line of the output is the growth in bytes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from edgedec.errors import UsageError
from edgedec.memory.heap import release_garbage, use_one_heap
from edgedec.runtime.grammar.grammar import Grammar
from edgedec.runtime.server.structure import _grammar

_ROOT = Path(__file__).parents[4]
_RESET_PEAK = "5"  # Source: proc_pid_clear_refs(5)


def growth_of_a_check(kind: str, source: Any) -> int:
    """Return the growth in bytes, measured in a process of its own."""
    command = [sys.executable, "-m", __name__]
    child = subprocess.run(
        command, cwd=_ROOT, input=json.dumps([kind, source]), stdout=subprocess.PIPE, check=True, text=True
    )
    return int(child.stdout)


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def _main() -> None:
    use_one_heap()
    kind, source = json.load(sys.stdin)
    for small in (Grammar.json_schema({"type": "object"}), Grammar.lark("start: /a/")):  # imports what all checks need
        assert small.program
    release_garbage()
    Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
    before = _resident("VmRSS")
    with suppress(UsageError):
        _grammar(kind, source, "response_format.schema" if kind == "json_schema" else None)
    sys.stdout.write(f"{_resident('VmHWM') - before}\n")


if __name__ == "__main__":
    _main()
