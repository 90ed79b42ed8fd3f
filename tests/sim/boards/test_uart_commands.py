"""Two commands, as a user runs them: one simulates an ULX3S behind a pseudo-terminal, the other writes a text on it.

Minutes to compile at the first time, then about a minute on a quiet machine, most of it for the weights: ``make test-all``.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from edgedec.runtime.kernels.recipe import find_compiler
from edgedec.sim.verify.cocotb_runner import missing_tools

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing_tools()) or find_compiler() is None, reason="missing: yosys or a C++ compiler"),
]

EDGEDEC = (sys.executable, "-m", "edgedec")
ASKED = ("-m", "demo", "-p", "Once upon a time", "-n", "4", "--temp", "0", "--json")


@pytest.fixture(scope="module")
def served() -> Iterator[dict[str, Any]]:
    """What ``edgedec simulate`` says of the board that it serves."""
    command = [*EDGEDEC, "simulate", "-m", "demo", "--terminal", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines: list[str] = []
        while lines[-1:] != ["}\n"]:
            lines.append(process.stdout.readline())
            assert lines[-1], process.stderr.read()
        try:
            yield json.loads("".join(lines))
        finally:
            process.send_signal(signal.SIGINT)
            said = process.stderr.read()
    assert process.returncode == 0, said
    assert "cycles simulated in" in said


def generated(*more: str) -> dict[str, Any]:
    done = subprocess.run([*EDGEDEC, "generate", *ASKED, *more], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("more", [(), ("--spec-type", "model", "--draft-max", "1")])
def test_the_tokens_are_those_of_the_reference(served: dict[str, Any], more: tuple[str, ...]) -> None:
    line = generated("--device", f"uart:{served['port']}", "--board", served["board"], *more)
    accelerator = line["timings"]["accelerator"]
    configuration = accelerator["configuration"]
    assert configuration["hash"] == served["configuration"]
    same = ("--board", served["board"], "--configuration", f"board,context={configuration['context']}")
    reference = generated("--device", "interpreter", *same, *more)
    assert reference["timings"]["accelerator"]["configuration"] == configuration
    assert line["tokens"] == reference["tokens"]
    assert accelerator["kind"] == "simulated"
    assert accelerator["decode"]["cycles"] > accelerator["decode"]["beats"] > 0
