"""Test options that several commands share: each is written once and reaches each command as one value."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal, get_type_hints

import pytest

from edgedec.cli.chat import chat
from edgedec.cli.generate import generate
from edgedec.cli.options import option
from edgedec.cli.plan import plan
from edgedec.cli.run_options import PlanOptions, RunOptions, TextOptions, command_line
from edgedec.errors import UsageError
from edgedec.memory.budget import Budget, MemoryLimit
from tests.edgedec.cli.conftest import Edgedec

COMMANDS = {"plan": plan, "generate": generate, "chat": chat}

INK = option("--ink")


@dataclass(frozen=True, kw_only=True)
class Colours:
    ink: Annotated[str, INK]
    paper: Annotated[str, option("--paper")] = "white"


def paint(colours: Colours, times: Annotated[int, option("--times")] = 1) -> None:
    PAINTED.append((colours, times))


PAINTED: list[tuple[Colours, int]] = []


def test_fields_become_parameters_and_come_back_as_one_value() -> None:
    paint_command = command_line(paint)
    parameters = inspect.signature(paint_command).parameters
    assert list(parameters) == ["ink", "paper", "times"]
    assert parameters["ink"].default is inspect.Parameter.empty
    assert (parameters["paper"].default, parameters["times"].default) == ("white", 1)
    assert get_type_hints(paint_command) == {"ink": str, "paper": str, "times": int}
    assert parameters["ink"].annotation.__metadata__ == (INK,)
    PAINTED.clear()
    paint_command(ink="black", paper="white", times=3)
    assert [(Colours(ink="black"), 3)] == PAINTED


@pytest.mark.parametrize(
    ("command", "groups"),
    [("plan", (PlanOptions,)), ("generate", (RunOptions, TextOptions)), ("chat", (RunOptions, TextOptions))],
)
def test_a_command_has_an_option_for_each_field(command: str, groups: tuple[type, ...]) -> None:
    callback = COMMANDS[command]
    own = [field.name for group in groups for field in fields(group)]
    assert list(inspect.signature(callback).parameters)[: len(own)] == own


@pytest.mark.parametrize(
    ("field", "value", "flag"),
    [("temp", -1.0, "--temp"), ("top_p", 2.0, "--top-p"), ("repeat_penalty", 0.0, "--repeat")],
)
def test_a_value_out_of_range_names_its_option(field: str, value: float, flag: str) -> None:
    with pytest.raises(UsageError, match=f"^{flag}"):
        TextOptions(**{field: value}).sampling()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("x", "edgedec: --logit-bias must be a token id, a sign and a number, such as 15043-1.5, not 'x'"),
        ("3+inf", "edgedec: --logit-bias must pair a token id >= 0 with a finite number or -inf, not 3 with inf"),
    ],
)
def test_a_message_names_the_option_as_it_is_spelled(edgedec: Edgedec, bundle: Path, value: str, message: str) -> None:
    outcome = edgedec("generate", bundle, "-p", "how?", "-l", value)
    assert (outcome.code, outcome.stdout, outcome.stderr) == (2, "", f"{message}\n")


@pytest.mark.parametrize(
    ("device", "source", "bound"), [("cpu", "cgroup", True), ("webgpu", "cgroup", False), ("webgpu", "flag", True)]
)
def test_a_control_group_limits_no_gpu(device: str, source: Literal["flag", "cgroup"], bound: bool) -> None:
    """Nobody asked for a budget there, so that several texts must not be refused for one."""
    limit = MemoryLimit(source=source, name="a limit", limit_bytes=1 << 30)
    assert RunOptions(model="demo", device=device)._charged(Budget(limits=(limit,))) == (1 << 30 if bound else None)
