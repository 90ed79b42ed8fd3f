from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from edgedec.errors import UsageError
from edgedec.plugins import load, names


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a package of plug-ins: two good ones, two broken ones, a private one, a folder."""
    folder = tmp_path / "plugin_test_tools"
    folder.mkdir()
    for name, text in {
        "__init__": "",
        "zebra": "def run(): return 'zebra'",
        "apple": "def run(): return 'apple'",
        "_private": "",
        "needs": "import a_module_that_nobody_has",
        "raises": "raise ValueError('inside')",
    }.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "deep").mkdir()
    (folder / "deep" / "__init__.py").write_text("def run(): return 'deep'")
    (folder / "notes.txt").write_text("no plug-in")
    monkeypatch.syspath_prepend(tmp_path)
    for module in [name for name in sys.modules if name.startswith(folder.name)]:
        monkeypatch.delitem(sys.modules, module)
    return folder.name


def test_names_are_the_files(package: str) -> None:
    assert names(package) == ["apple", "deep", "needs", "raises", "zebra"]


def test_listing_imports_no_plug_in(package: str) -> None:
    names(package)
    assert f"{package}.raises" not in sys.modules


@pytest.mark.parametrize("name", ["apple", "zebra", "deep"])
def test_load_imports_the_plug_in(package: str, name: str) -> None:
    assert load(package, name).run() == name


def test_a_plug_in_that_another_thread_is_importing_is_waited_for(package: str, tmp_path: Path) -> None:
    (tmp_path / package / "slow.py").write_text("import time\ntime.sleep(0.2)\ndef run(): return 'slow'")
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: load(package, "slow").run(), range(4))) == ["slow"] * 4


NEAR_APPLE = ["apple.x", "../apple", "apple.py"]


@pytest.mark.parametrize(
    "name", [*NEAR_APPLE, "pear", "_private", "__init__", "", ".", "..", "a b", "notes", "Äpfel", "1"]
)
def test_an_unknown_name_lists_the_known_ones(package: str, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(package, name)
    near = "; did you mean 'apple'?" if name in NEAR_APPLE else ""
    assert str(caught.value) == f"no {name!r} among the {package}; known: apple, deep, needs, raises, zebra{near}"


def test_an_import_error_inside_a_plug_in_passes_through(package: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="a_module_that_nobody_has"):
        load(package, "needs")


def test_any_error_inside_a_plug_in_passes_through(package: str) -> None:
    with pytest.raises(ValueError, match=r"^inside$"):
        load(package, "raises")


def test_the_message_names_the_kind_by_its_folder() -> None:
    with pytest.raises(UsageError, match=r"^no 'gpt' among the families; known: .*llama"):
        load("edgedec.families", "gpt")


@pytest.mark.parametrize(
    "package",
    ["edgedec.families", "edgedec.reference.float_profile.ops", "edgedec.onnx.ops", "edgedec.runtime.targets"],
)
def test_the_project_has_plug_ins(package: str) -> None:
    assert names(package)
