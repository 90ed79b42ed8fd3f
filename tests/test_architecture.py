"""Check the picture of docs/architecture.md: it equals the imports. tests/test_map.py checks the rest of the page."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


def drawing(root: Path) -> ModuleType:
    """Return the script as a module that draws the checkout at ``root``."""
    spec = importlib.util.spec_from_file_location("draw_layers", ROOT / ".ci" / "draw_layers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ROOT = root  # type: ignore[attr-defined]
    return module


@pytest.mark.thorough
def test_the_picture_equals_the_imports() -> None:
    message = "docs/layers.svg is out of date: run .venv/bin/python .ci/draw_layers.py"
    assert drawing(ROOT).draw() == (ROOT / "docs" / "layers.svg").read_text("utf-8"), message


@pytest.mark.nightly(sample=1)
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("file", "line", "pair"),
    [
        ("hw/planted.py", "from edgedec.runtime.session.session import Session\n", ("hw", "runtime")),
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
