"""Test that plain values of options are read as typer reads them, and that a start imports no more than it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from edgedec import demo
from edgedec.cli._origins import OriginCommand
from edgedec.cli._plain_values import NOT_PLAIN, plain_value

ADAPTERS = pytest.importorskip("typer._adapters", reason="this version of typer reads values in another way")
OptionInfo = pytest.importorskip("typer.models").OptionInfo
VALUES = st.one_of(
    st.text(max_size=20),
    st.from_regex(r"[-+ ]?[0-9_]{0,18}([.eE][0-9]{0,4})?", fullmatch=True),
    st.sampled_from(
        ["1e3", "inf", "nan", "-0", "007", "1_000", "٣", " 5", "5 ", "0x10", "1.", ".5", "9" * 15, "9" * 400]
    ),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.none(),
)


@pytest.mark.thorough
@given(
    value=VALUES,
    kind=st.sampled_from([str, int, float]),
    least=st.none() | st.integers(-5, 5),
    most=st.none() | st.integers(0, 1000),
)
def test_a_plain_value_is_the_one_that_typer_reads(value: Any, kind: Any, least: int | None, most: int | None) -> None:
    read = plain_value(value, kind, least=least, most=most)
    if read is NOT_PLAIN:
        return
    adapter = ADAPTERS.build_adapter(kind, OptionInfo(min=least, max=most))
    expected = adapter.validate_python(value, context={"ctx": None, "param": None})
    assert (type(read), read) == (type(expected), expected)


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [("12", int, 12), ("-3", int, -3), ("0.5", float, 0.5), ("7", float, 7.0), ("a b", str, "a b"), (3, float, 3.0)],
)
def test_usual_values_are_plain(value: Any, kind: Any, expected: Any) -> None:
    read = plain_value(value, kind, least=None, most=None)
    assert (type(read), read) == (type(expected), expected)


def doubled(value: int) -> int:
    return 2 * value


def command(*, cls: Any) -> typer.Typer:
    app = typer.Typer(add_completion=False, rich_markup_mode=None)

    @app.command(cls=cls)
    def run(
        name: Annotated[str, typer.Option("--name")],
        text: Annotated[str | None, typer.Option("--text")] = None,
        count: Annotated[int, typer.Option("-n", min=-1, max=9)] = 3,
        rate: Annotated[float, typer.Option("--rate", min=0)] = 1,
        clamped: Annotated[int, typer.Option("--clamped", min=0, max=5, clamp=True)] = 2,
        twice: Annotated[int, typer.Option("--twice", callback=doubled)] = 4,
        words: Annotated[list[str] | None, typer.Option("--word")] = None,
        numbers: Annotated[list[int] | None, typer.Option("--number")] = None,
        file: Annotated[Path | None, typer.Option("--file")] = None,
        flag: Annotated[bool, typer.Option("--flag")] = False,
        switch: Annotated[bool | None, typer.Option("--switch/--no-switch")] = None,
        level: Annotated[int, typer.Option("-v", count=True)] = 0,
    ) -> None:
        typer.echo([name, text, count, rate, clamped, twice, words, numbers, file, flag, switch, level])

    return app


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--name x",
        "--name x -n 5 --rate 0.5 --text hello",
        "--name x -n 10",
        "--name x -n -2",
        "--name x -n five",
        "--name x --rate -1",
        "--name x --rate fast",
        "--name x --rate 1e3 -n +4",
        "--name x --clamped 9 --twice 8",
        "--name x --word a --word b --number 1 --number 2",
        "--name x --number one",
        "--name x --file a/b --flag --no-switch -vv",
        "--help",
    ],
)
def test_a_command_line_is_read_as_typer_reads_it(words: str) -> None:
    ours, theirs = (
        CliRunner().invoke(command(cls=cls), words.split(), prog_name="run") for cls in (OriginCommand, None)
    )
    assert ours.exit_code == theirs.exit_code
    if ours.exit_code == 0:
        assert ours.output == theirs.output


# Modules whose import takes long, and that a plain text does not need.
HEAVY = {
    "onnx": "models are written by edgedec.onnx.model_bytes",
    "google": "so is their encoding",
    "pydantic": "options are read by edgedec.cli._plain_values",
    "jinja2": "chats need it",
    "llguidance": "grammars need it",
    "fastapi": "the server needs it",
    "rich": "progress bars need it, on a terminal",
    "torch": "nothing does",
    "onnxruntime": "the kernels run the embedded models without it",
    "importlib.metadata": "error messages need it",
    "tarfile": "the package onnx imported it",
    "numpy.random": "trees whose children are drawn need it",
    "edgedec.hw": "accelerators need it",
    "edgedec.boards": "accelerators need it",
    "edgedec.sim.device": "simulations need it",
    "edgedec.reference.integer_profile": "accelerators need it",
    "edgedec.quantize.pipeline": "quantizing needs it",
    "edgedec.cli.serve": "another command",
    "edgedec.cli.quantize": "another command",
}
GENERATE = """
import sys
sys.argv = ["edgedec", "generate", "-m", "demo", "-p", "Once upon a time", "-n", "1", "-t", "1"]
from edgedec.cli.app import main
try:
    main()
finally:
    print("MODULES", *sys.modules)
"""


@pytest.mark.thorough
def test_a_plain_text_imports_nothing_that_it_does_not_need() -> None:
    demo.bundle_path()  # it is made at its first use, which imports more
    process = subprocess.run([sys.executable, "-c", GENERATE], capture_output=True, text=True, check=True)
    _, _, names = process.stdout.partition("MODULES ")
    modules = set(names.split())
    assert {"numpy", "edgedec.runtime.session.session"} <= modules
    assert {name: reason for name, reason in HEAVY.items() if name in modules} == {}
