"""Settings of a run, of a target and of an answer stand once, are checked in one place, and a new one is three lines."""

from __future__ import annotations

import ast
import doctest
import importlib.util
import inspect
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from edgedec.api import plan_run
from edgedec.errors import EdgedecError, UnsupportedError, UsageError
from edgedec.runtime import run_settings, text_settings
from edgedec.runtime.run_settings import RunKeywords, RunSettings
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from edgedec.runtime.target_request import TargetKeywords, TargetRequest
from edgedec.runtime.targets import open_target
from edgedec.runtime.text_settings import TextKeywords, TextSettings

ROOT = Path(__file__).resolve().parents[2]
REQUIRED = {"limits": "Required[Limits]"}  # the types of the keywords without a default
PAIRS: list[tuple[type[Any], type[Any]]] = [
    (RunSettings, RunKeywords),
    (TargetRequest, TargetKeywords),
    (TextSettings, TextKeywords),
]


@pytest.mark.parametrize(("settings", "keywords"), PAIRS)
def test_the_keywords_of_the_python_api_are_the_fields(settings: type[Any], keywords: type[Any]) -> None:
    names = {name: getattr(kind, "__forward_arg__", kind) for name, kind in keywords.__annotations__.items()}
    assert names == {field.name: REQUIRED.get(field.name, field.type) for field in fields(settings)}


@pytest.mark.parametrize(
    ("function", "settings", "own"),
    [
        (plan_run, RunSettings, ["model"]),
        (Session.open, RunSettings, ["path", "verify", "progress"]),
        (open_target, TargetRequest, ["bundle", "accelerator", "progress"]),
        (Session.generate, TextSettings, ["self", "prompt", "on_text"]),
        (Session.stream, TextSettings, ["self", "prompt"]),
    ],
)
def test_a_signature_shows_each_field_with_its_default(
    function: Callable[..., object], settings: type[Any], own: list[str]
) -> None:
    shown = inspect.signature(function).parameters
    assert [name for name in shown if name not in {field.name for field in fields(settings)}] == own
    for field in fields(settings):
        default = inspect.Parameter.empty if field.name == "limits" else field.default
        assert (shown[field.name].default, shown[field.name].kind) == (default, inspect.Parameter.KEYWORD_ONLY)


def test_an_unknown_keyword_is_named() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        plan_run("demo", colour="red")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"budget_bytes": "32MiB"}, UsageError, "budget_bytes must be a whole number of bytes"),
        ({"kv_policy": "ful"}, UsageError, "--kv-policy must be one of full, auto"),
        ({"value_rows": -1}, UsageError, "--value-rows must be 0 to 16777216, not -1"),
        ({"sequences": 0}, UsageError, "sequences must be 1 to 64, the rows of a pass, not 0"),
        ({"sequences": 65}, UsageError, "sequences must be 1 to 64, the rows of a pass, not 65"),
        ({"device": "webgpu", "budget_bytes": 1}, UnsupportedError, "a memory budget cannot be kept on webgpu: "),
    ],
)
def test_wrong_settings_of_a_run_are_refused_when_they_are_made(
    values: Mapping[str, Any], error: type[EdgedecError], message: str
) -> None:
    with pytest.raises(error, match=message):
        RunSettings(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"stop": "END"}, r"stop must be a list of texts, such as \['END'\], not a text"),
        ({"sampling": {"seed": 1}}, "sampling must be a SamplingConfig"),
        ({"logprobs": -1}, "logprobs must be 0 to 20 likeliest tokens, not -1"),
        ({"logprobs": 21}, "logprobs must be 0 to 20 likeliest tokens, not 21"),
        ({"prompt_logprobs": True, "logprobs_of": "sampling"}, "prompt_logprobs needs logprobs_of='model'"),
    ],
)
def test_wrong_settings_of_an_answer_are_refused_when_they_are_made(values: Mapping[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TextSettings(**values)
    assert TextSettings(sampling=SamplingConfig(seed=1), stop=("END",), logprobs=20)


@pytest.mark.parametrize("module", [run_settings, text_settings])
def test_the_examples_in_the_docstrings_run(module: Any) -> None:
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert (result.failed, result.attempted) == (0, 2)


# --- a new setting ----------------------------------------------------------------------------------------------------


def repeated(source: str) -> list[str]:
    """Return the functions of a module that have six or more settings of a run as arguments of their own."""
    names = {field.name for field in fields(RunSettings)}
    return [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and len({one.arg for one in (*node.args.args, *node.args.kwonlyargs)} & names) >= 6
    ]


@pytest.mark.thorough
def test_no_function_spells_out_the_settings_of_a_run() -> None:
    files = [file for folder in ("edgedec", "runtime") for file in (ROOT / folder).rglob("*.py")]
    assert len(files) > 300
    assert {str(file): found for file in files if (found := repeated(file.read_text("utf-8")))} == {}


def test_such_a_function_would_be_seen() -> None:
    assert repeated("def plan(bundle, *, device, threads, ctx_size, kv_bits, kv_policy, spec): ...") == ["plan"]
    assert repeated("def plan(bundle, *, device, threads, ctx_size, kv_bits, spec): ...") == []


# The lines of an imaginary option of runs and of an imaginary setting of answers, each after a line that is there.
LINES = {
    "runtime/run_settings.py": {
        "    embeddings: bool = False\n": "    imaginary: int = 0\n",
        "    embeddings: bool\n": "    imaginary: int\n",
    },
    "edgedec/cli/run_options.py": {
        "    memory_budget: MemoryBudget = None\n": '    imaginary: Annotated[int, memory_option("--imaginary")] = 0\n',
    },
    "runtime/text_settings.py": {
        "    on_rows: Callable[[F32], None] | None = None\n": '    magic: str = "none"\n',
        "    on_rows: Callable[[F32], None] | None\n": "    magic: str\n",
    },
}

# The use of both is that they are printed. No other line of the program knows them.
SCRIPT = """
import importlib, importlib.util, inspect, sys
for name, path in zip(sys.argv[1::2], sys.argv[2::2]):
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    parent, _, last = name.rpartition(".")
    spec.loader.exec_module(module)
    setattr(importlib.import_module(parent), last, module)
from edgedec import Session, plan_run
from edgedec.cli.app import main
from edgedec.runtime.planning.planner import Planner
from edgedec.runtime.session.request_builder import RequestBuilder

def shows(kind, name, attribute):
    real = getattr(kind, name)
    def shown(self, *words, **options):
        holder = self.settings if kind is Planner else words[1]
        print(f"\\n{kind.__name__} has {getattr(holder, attribute)}")
        return real(self, *words, **options)
    setattr(kind, name, shown)

shows(Planner, "best", "imaginary")
shows(RequestBuilder, "build", "magic")
plan_run("demo", imaginary=3)
with Session.open("demo", ctx_size=64, threads=1, imaginary=5) as session:
    session.generate("Once", n_predict=1, magic="white")
    session.stream("Once", n_predict=1, magic="black").close()
for words in (["plan", "-m", "demo"], ["generate", "-m", "demo", "-p", "Once", "-n", "1"]):
    sys.argv = ["edgedec", *words, "--imaginary", "7"]
    try:
        main()
    except SystemExit as end:
        assert not end.code, end
print(inspect.signature(Session.open).parameters["imaginary"])
"""


@pytest.mark.thorough
def test_an_imaginary_option_takes_three_lines_in_two_files(tmp_path: Path) -> None:
    words = list[str]()
    for path, lines in LINES.items():
        source = (ROOT / path).read_text("utf-8")
        for before, line in lines.items():
            assert source.count(before) == 1
            source = source.replace(before, before + line)
        file = tmp_path / Path(path).name
        file.write_text(source, "utf-8")
        words += [".".join(Path(path).with_suffix("").parts).replace("runtime.", "edgedec.runtime.", 1), str(file)]
    assert sum(len(LINES[path]) for path in ("runtime/run_settings.py", "edgedec/cli/run_options.py")) == 3
    assert len(LINES["runtime/text_settings.py"]) == 2
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = ("Planner has ", "RequestBuilder has ", "imaginary")
    assert [line for line in done.stdout.splitlines() if line.startswith(seen)] == [
        "Planner has 3",
        "Planner has 5",
        "RequestBuilder has white",
        "RequestBuilder has black",
        "Planner has 7",
        "Planner has 7",
        "RequestBuilder has none",
        "imaginary: 'int' = 0",
    ]


def test_the_lines_are_added_to_modules_of_the_program() -> None:
    for path in LINES:
        name = ".".join(Path(path).with_suffix("").parts).replace("runtime.", "edgedec.runtime.", 1)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert Path(str(spec.origin)).samefile(ROOT / path)
