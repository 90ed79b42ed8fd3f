"""Run two commands like a user: one simulates a ULX3S on a pseudo-terminal, the other writes a text on it.

The first run compiles for minutes; later ones take about a minute on an idle machine, most of it for the weights:
``make test-nightly``.
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
    pytest.mark.nightly,
    pytest.mark.skipif(bool(missing_tools()) or find_compiler() is None, reason="missing: yosys or a C++ compiler"),
]

EDGEDEC = (sys.executable, "-m", "edgedec")
ASKED = ("-m", "demo", "-p", "Once upon a time", "-n", "4", "--temp", "0", "--json")


@pytest.fixture(scope="module")
def served() -> Iterator[dict[str, Any]]:
    """Return what ``edgedec simulate`` prints about the board that it serves."""
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
            output = process.stderr.read()
    assert process.returncode == 0, output
    assert "cycles simulated in" in output


def generated(*options: str) -> dict[str, Any]:
    process = subprocess.run([*EDGEDEC, "generate", *ASKED, *options], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    result: dict[str, Any] = json.loads(process.stdout)
    return result


@pytest.mark.parametrize("options", [(), ("--spec-type", "model", "--draft-max", "1")])
def test_the_tokens_are_those_of_the_reference(served: dict[str, Any], options: tuple[str, ...]) -> None:
    line = generated("--device", f"uart:{served['port']}", "--board", served["board"], *options)
    accelerator = line["timings"]["accelerator"]
    configuration = accelerator["configuration"]
    assert configuration["hash"] == served["configuration"]
    configuration_options = ("--board", served["board"], "--configuration", f"board,context={configuration['context']}")
    reference = generated("--device", "interpreter", *configuration_options, *options)
    assert reference["timings"]["accelerator"]["configuration"] == configuration
    assert line["tokens"] == reference["tokens"]
    assert accelerator["kind"] == "simulated"
    assert accelerator["decode"]["cycles"] > accelerator["decode"]["beats"] > 0
