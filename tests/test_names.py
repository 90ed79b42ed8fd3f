"""A public class has a name of its own: no two modules of the project define a class of the same name.

A name in a message, a page or a traceback then identifies one class. Private classes, whose names begin with an underscore,
are local to their module and are not compared.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("benchmarks", "boards", "edgedec", "hw", "quantize", "runtime", "sim")
# Names that two modules share, each with its reason.
SHARED: Mapping[str, str] = {
    "GatedActivation": "the operation of a graph, and the component that computes it in hardware",
    "RmsNorm": "the operation of a graph, and the component that computes it in hardware",
}


def public_classes(modules: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the modules that define each public class, by the name of the class; ``modules`` are (path, source)."""
    defined: dict[str, list[str]] = defaultdict(list)
    for path, source in modules:
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                defined[node.name].append(path)
    return defined


def doubled(modules: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the public classes that several modules define."""
    return {name: sorted(paths) for name, paths in public_classes(modules).items() if len(paths) > 1}


def modules() -> Iterator[tuple[str, str]]:
    """Yield the path and the source of each module of the project."""
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            yield str(file.relative_to(ROOT)), file.read_text("utf-8")


@pytest.mark.thorough
def test_each_public_class_has_a_name_of_its_own() -> None:
    strange = {name: paths for name, paths in doubled(modules()).items() if name not in SHARED}
    assert not strange, "rename one of each pair, or add the name with its reason to SHARED"


def test_each_exception_is_needed() -> None:
    naming = (module for module in modules() if any(name in module[1] for name in SHARED))
    assert set(SHARED) <= set(doubled(naming)), "remove the names from SHARED that only one module defines"


@pytest.mark.parametrize(
    ("left", "right", "names"),
    [
        ("class Plan:\n    pass\n", "class Plan:\n    pass\n", ["Plan"]),
        ("class Plan:\n    pass\n", "class Plans:\n    pass\n", []),
        ("class _Plan:\n    pass\n", "class _Plan:\n    pass\n", []),
        ("class Plan:\n    pass\n", "from a import Plan\n", []),
        ("class Plan:\n    class Item:\n        pass\n", "class Item:\n    pass\n", []),
    ],
)
def test_planted_names_are_compared(left: str, right: str, names: list[str]) -> None:
    assert list(doubled([("a.py", left), ("b.py", right)])) == names
