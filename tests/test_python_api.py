"""``from edgedec import ...``: importing edgedec loads nothing, and docs/python-api.md describes exactly what there is."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

import edgedec
from edgedec import Answer, Plan, SamplingConfig, Session, SpecConfig, Timings, plan_run, quantize_checkpoint

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "python-api.md").read_text("utf-8")
SECTIONS: dict[str, str] = dict(re.findall(r"(?ms)^### `([^`]+)`$\n(.*?)(?=^##|\Z)", PAGE))
BLOCKS = re.findall(r"(?ms)^```python\n(.*?)^```$", PAGE)


def run(code: str, folder: Path) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_edgedec_loads_no_other_module_of_its_own_and_no_package(tmp_path: Path) -> None:
    code = (
        "import json, sys; before = set(sys.modules); import edgedec; print(json.dumps([*set(sys.modules) - before]))"
    )
    loaded = json.loads(run(code, tmp_path))
    assert "edgedec" in loaded
    assert [name for name in loaded if name.split(".")[0] not in sys.stdlib_module_names] == ["edgedec"]


def test_looking_at_the_names_and_using_the_errors_load_no_numpy(tmp_path: Path) -> None:
    code = "import edgedec, sys; dir(edgedec); edgedec.UsageError; print([n in sys.modules for n in sys.argv[1:]])"
    assert run(f"import sys; sys.argv[1:] = ['numpy', 'onnxruntime']; {code}", tmp_path) == "[False, False]\n"


def test_every_public_name_is_what_its_module_defines() -> None:
    defined = {name: module for module, names in edgedec._DEFINED_IN.items() for name in names}
    assert set(defined) | {"__version__"} == set(edgedec.__all__) <= set(dir(edgedec))
    for name, module in defined.items():
        assert getattr(edgedec, name) is getattr(import_module(f"edgedec.{module}"), name)
        assert getattr(edgedec, name).__module__ == f"edgedec.{module}"


def test_type_checkers_are_told_the_same_names_from_the_same_modules() -> None:
    tree = ast.parse(Path(edgedec.__file__).read_text("utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    (block,) = [node for node in blocks if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"]
    told: dict[str, set[str]] = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        assert node.module is not None
        told[node.module.removeprefix("edgedec.")] = {alias.name for alias in node.names}
    assert told == {module: set(names) for module, names in edgedec._DEFINED_IN.items()}


def test_an_unknown_name_is_an_attribute_error_and_subpackages_are_still_found(tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match=r"module 'edgedec' has no attribute 'generate'"):
        edgedec.generate  # type: ignore[attr-defined]  # noqa: B018
    assert run("from edgedec import quantize; print(quantize.__name__)", tmp_path) == "edgedec.quantize\n"


def test_the_page_has_a_section_for_each_name_and_no_other() -> None:
    assert sorted(SECTIONS) == sorted(edgedec.__all__)
    assert len(re.findall(r"(?m)^### ", PAGE.partition("\n## Changing this\n")[0])) == len(SECTIONS)


def members(value: type) -> list[str]:
    """Return the public members of a data class: its fields, properties and methods."""
    return [
        *(field.name for field in dataclasses.fields(value)),
        *(name for name, member in vars(value).items() if not name.startswith("_") and not name.isupper()),
    ]


def parameters(function: Callable[..., object]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


@pytest.mark.parametrize(
    ("section", "names"),
    [
        ("quantize_checkpoint", parameters(quantize_checkpoint)),
        ("Session", [*parameters(Session.open), *parameters(Session.generate), *parameters(Session.stream)]),
        ("SamplingConfig", [field.name for field in dataclasses.fields(SamplingConfig)]),
        ("SpecConfig", members(SpecConfig)),
        ("Plan", members(Plan)),
        ("Answer", members(Answer)),
        ("Timings", members(Timings)),
    ],
)
def test_a_section_describes_every_parameter_and_member(section: str, names: list[str]) -> None:
    """A signature names all parameters, so that it does not count."""
    spans = [span for span in re.findall(r"`([^`]*)`", SECTIONS[section].replace("\n", " ")) if "*," not in span]
    said = set(re.findall(r"\w+", " ".join(spans)))
    assert [name for name in names if name not in said] == []


@pytest.mark.parametrize(
    ("function", "section", "begins"),
    [
        (quantize_checkpoint, "quantize_checkpoint", "quantize_checkpoint("),
        (plan_run, "plan_run", "plan_run("),
        (Session.open, "Session", "Session.open("),
        (Session.generate, "Session", "generate("),
        (Session.stream, "Session", "stream("),
    ],
)
def test_the_page_gives_the_signatures_with_their_defaults(
    function: Callable[..., object], section: str, begins: str
) -> None:
    """A default that is a function is written as ``...``, or by its name."""
    (written,) = re.findall(rf"`{re.escape(begins)}([^`]*)\)`", SECTIONS[section].replace("\n", " "))
    arguments = ast.parse(f"lambda {written}: 0", mode="eval").body
    assert isinstance(arguments, ast.Lambda)
    defaults = {
        argument.arg: ast.unparse(default)
        for argument, default in zip(arguments.args.kwonlyargs, arguments.args.kw_defaults, strict=True)
        if default is not None
    }
    real = inspect.signature(function).parameters
    positional = [name for name, one in real.items() if one.kind is one.POSITIONAL_OR_KEYWORD and name != "self"]
    assert [argument.arg for argument in arguments.args.args] == positional
    assert list(defaults) == [name for name, one in real.items() if one.kind is one.KEYWORD_ONLY]
    for name, default in defaults.items():
        value = real[name].default
        assert default in (repr(value), "...", getattr(value, "__name__", "")), name
        assert default != "..." or callable(value), name


@pytest.mark.thorough
def test_the_blocks_of_the_page_run_from_top_to_bottom(tmp_path: Path) -> None:
    assert len(BLOCKS) >= 6
    code = "\n".join([*BLOCKS, "assert guessed.tokens == answer.tokens and not small.fits and plan.fits"])
    said = run(code + "\nassert stream.answer.stop_reason == 'interrupted'", tmp_path)
    assert "there was a girl" in said
    assert "try --memory-budget" in said
    assert [path.name for path in tmp_path.iterdir()] == ["story.edgedec"]


def test_a_broken_block_would_be_seen(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="ImportError"):
        run("from edgedec import Generator", tmp_path)
