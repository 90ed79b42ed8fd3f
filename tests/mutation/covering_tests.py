"""Find the tests that can notice a wrong edit of a module of ``hw/``: its own first, then those that reach it by
imports.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path

from edgedec.errors import UsageError
from tests.support.statements import statements

__all__ = ["SIMULATED_IN", "covering_tests", "importers", "module_names", "module_path"]

# folders that are read for imports; the core's name is a prefix of the others' and comes last
_PACKAGES = {
    "edgedec.hw": "hw",
    "edgedec.boards": "boards",
    "edgedec.sim": "sim",
    "tests": "tests",
    "edgedec": "edgedec",
}


_HEADS, _ATTENTION = "tests/hw/attention/test_heads.py", "tests/hw/attention/test_attention_path.py"
# Modules whose own tests, if there are any, show only a part -> the files that show the rest, the fastest first. Tests that
# import less, of estimates for instance, are nearer.
SIMULATED_IN: dict[str, tuple[str, ...]] = {
    "attention/head_buffer": (_HEADS, _ATTENTION),
    "attention/issue": (_HEADS, _ATTENTION),
    "attention/head_feeder": (_ATTENTION,),
    "attention/score_memory": ("tests/hw/attention/test_score_memory_edges.py", _ATTENTION),
    "attention/weighted_values": ("tests/hw/test_parameter_ranges.py", _ATTENTION),
    "datapath": ("tests/hw/test_accelerator.py",),
    "matrix/lookup_engine": ("tests/hw/matrix/test_lookup_banks.py",),
    "matrix/matrix_path": ("tests/hw/matrix/test_matrix_turns.py",),
    "emit/rtlil": ("tests/hw/blocks/test_collisions.py",),
    "system/sdram/controller": ("tests/hw/system/sdram/test_stalled_answers.py",),
    "system/sdram/sequencer": (
        "tests/hw/system/sdram/test_stalled_answers.py",
        "tests/hw/system/sdram/test_controller.py",
    ),
    "system/zynq/zynq_system": ("tests/hw/system/zynq/test_zynq_ports.py",),
}


def module_names(root: Path) -> list[str]:
    """Return all modules of ``hw/`` as ``blocks/divider`` or ``compiler/lowering``."""
    folder = root / "hw"
    paths = (path.relative_to(folder).with_suffix("") for path in folder.rglob("*.py") if path.stem != "__init__")
    return sorted(path.as_posix() for path in paths)


def module_path(root: Path, module: str) -> Path:
    """Return the file of ``blocks/divider``, ``compiler/lowering`` or ``compiler.lowering``.

    Raises:
        UsageError: there is no such module.
    """
    modules = module_names(root)
    if module.replace(".", "/") not in modules:
        raise UsageError(f"hw has no module {module!r}; it has {', '.join(modules)}")
    return root / "hw" / f"{module.replace('.', '/')}.py"


def covering_tests(root: Path, module: str, users: Mapping[Path, list[Path]] | None = None) -> list[Path]:
    """Return test files that import the module, itself or through others; the nearest first, and of equals the
    smallest.

    The nearest are tests/hw/test_MODULE.py and the files that ``SIMULATED_IN`` names; of others equally far, those beside it
    come first. A file's distance is the number of imports that lead from it to the module, through hw/, boards/, sim/, the
    core and what tests share. ``users`` is what ``importers`` returns for the root, if it is known.

    Raises:
        UsageError: there is no such module, or no such test.
    """
    path = module_path(root, module)
    own = root / "tests" / path.parent.relative_to(root) / f"test_{path.stem}.py"
    simulated_in = (root / file for file in SIMULATED_IN.get(module.replace(".", "/"), ()))
    nearest_tests = [file for file in (own, *simulated_in) if file.is_file()]
    users = importers(root) if users is None else users
    distances = {path: 0}
    fringe = [path]
    while fringe:
        nearest = fringe.pop(0)
        for user in users.get(nearest, ()):
            if user not in distances:
                distances[user] = distances[nearest] + 1
                fringe.append(user)
    tests = [file for file in distances if file.name.startswith("test_") and file not in nearest_tests]
    tests.sort(key=lambda file: (distances[file], file.parent != own.parent, file.stat().st_size, file))
    tests = nearest_tests + tests
    if not tests:
        raise UsageError(f"no test imports edgedec.hw.{module.replace('/', '.')}: write {own.relative_to(root)}")
    return tests


def importers(root: Path) -> Mapping[Path, list[Path]]:
    """Return each file -> those that import it."""
    paths = (path for folder in _PACKAGES.values() for path in sorted((root / folder).rglob("*.py")))
    return _importers_in(root, tuple((path, path.stat().st_mtime_ns) for path in paths))


@lru_cache(maxsize=1)  # the same files for one module after another
def _importers_in(root: Path, files: tuple[tuple[Path, int], ...]) -> Mapping[Path, list[Path]]:
    users: dict[Path, list[Path]] = {}
    for path, changed in files:
        for name in _imports(path, changed):
            if (imported_file := _file(root, name)) is not None:
                users.setdefault(imported_file, []).append(path)
    return users


def _file(root: Path, name: str) -> Path | None:
    for package, folder in _PACKAGES.items():
        if name.startswith(f"{package}."):
            path = root / folder / f"{name.removeprefix(package)[1:].replace('.', '/')}.py"
            return path if path.is_file() else None
    return None


@cache
def _imports(path: Path, changed: int) -> frozenset[str]:
    """Return the full names that a file imports anywhere; ``changed`` is its time, for the cache."""
    names: set[str] = set()
    for node in statements(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return frozenset(names)
