"""Check docs/architecture.md, the map: its picture equals the imports, and the places that it names exist."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
PLACE = re.compile(r"`((?:\.ci|edgedec|hw|quantize|runtime|boards|sim|tests|docs)/[\w./-]*)`")


def drawing(root: Path) -> ModuleType:
    """Return the script as a module that draws the checkout at ``root``."""
    spec = importlib.util.spec_from_file_location("draw_layers", ROOT / ".ci" / "draw_layers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ROOT = root  # type: ignore[attr-defined]
    return module


def test_the_picture_equals_the_imports() -> None:
    message = "docs/layers.svg is out of date: run .venv/bin/python .ci/draw_layers.py"
    assert drawing(ROOT).draw() == (ROOT / "docs" / "layers.svg").read_text("utf-8"), message


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("file", "line", "pair"),
    [
        ("hw/planted.py", "from edgedec.runtime.session import Session\n", ("hw", "runtime")),
        ("quantize/planted.py", "def late() -> None:\n    import edgedec.boards.kv260\n", ("quantize", "boards")),
        ("edgedec/planted.py", "from edgedec import sim\n", ("core", "sim")),
    ],
)
def test_a_new_import_is_a_new_arrow(tmp_path: Path, file: str, line: str, pair: tuple[str, str]) -> None:
    for folder in ("edgedec", "hw", "quantize", "runtime", "boards", "sim"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "*.so", "demo"))
    module = drawing(tmp_path)
    before = module.arrows()
    assert pair not in before
    (tmp_path / file).write_text(line, "utf-8")
    assert module.arrows() == before | {pair}
    assert module.draw() != (ROOT / "docs" / "layers.svg").read_text("utf-8")


def test_every_place_on_the_map_exists() -> None:
    places = PLACE.findall(PAGE.read_text("utf-8"))
    assert len(places) > 50
    assert [place for place in places if not (ROOT / place).exists()] == []
