"""Run the examples of docs/structured-output.md that have an answer: each ends by its grammar, with the answer there."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.edgedec.cli.conftest import Edgedec

PAGE = Path(__file__).resolve().parents[3] / "docs" / "structured-output.md"


def examples() -> list[tuple[str, str]]:
    """Return (command, answer) of each example with the embedded model. What is refused has a message for an answer."""
    lines = PAGE.read_text("utf-8").splitlines()
    return [
        (line.removeprefix("    $ edgedec "), lines[at + 1].strip())
        for at, line in enumerate(lines)
        if line.startswith("    $ edgedec generate -m demo")
    ]


@pytest.mark.thorough
@pytest.mark.parametrize(("command", "answer"), examples())
def test_an_example_ends_with_its_answer(edgedec: Edgedec, command: str, answer: str) -> None:
    outcome = edgedec(*shlex.split(command))
    if answer.startswith("edgedec: "):
        assert (outcome.code, outcome.stderr.startswith(answer)) == (2, True)
        return
    assert (outcome.code, " ".join(outcome.stdout.split())) == (0, answer)
    assert "ended by: grammar" in outcome.stderr


def test_there_are_examples() -> None:
    assert len(examples()) >= 4
