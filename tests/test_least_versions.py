"""Hold the package to the least versions of edgedec/least_versions.py: its bounds for pip and ruff, its docs, and the names
that it takes from Python and NumPy.

Ruff holds the syntax, by its ``target-version``. The names that are newer than the least versions are listed here: they are
those that Python 3.13 has and Python 3.10 has not, and those that NumPy 2.4 has and NumPy 1.21 has not, of the modules that
the package imports.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgedec.cli import serve
from edgedec.errors import ToolError
from edgedec.least_versions import NUMPY, PYNQ, PYTHON, SERVE_PYTHON, dotted, version_numbers

FOLDERS = ("edgedec", "hw", "quantize", "runtime", "boards", "sim")
SERVER = "runtime/server/"  # needs SERVE_PYTHON, which `edgedec serve` checks

NEWER_MODULES = ("tomllib", "importlib.resources.abc")
NEWER_NAMES = {
    "asyncio": """Barrier BrokenBarrierError Runner TaskGroup Timeout create_eager_task_factory eager_task_factory timeout
        timeout_at QueueShutDown""",
    "collections.abc": "Buffer",
    "contextlib": "chdir",
    "copy": "replace",
    "ctypes": "BigEndianUnion LittleEndianUnion c_time_t",
    "datetime": "UTC",
    "enum": """CONFORM CONTINUOUS EJECT KEEP NAMED_FLAGS STRICT UNIQUE EnumCheck EnumType FlagBoundary ReprEnum StrEnum
        global_enum member nonmember property verify""",
    "hashlib": "file_digest",
    "inspect": "BufferFlags getasyncgenstate getmembers_static markcoroutinefunction",
    "itertools": "batched",
    "logging": "getHandlerByName getHandlerNames getLevelNamesMapping",
    "math": "cbrt exp2 fma sumprod",
    "mmap": "MAP_32BIT MAP_NORESERVE MAP_STACK",
    "operator": "call",
    "os": "CLONE_NEWNET CLONE_NEWNS CLONE_NEWPID CLONE_NEWUSER login_tty process_cpu_count setns timerfd_create unshare",
    "pathlib": "UnsupportedOperation",
    "queue": "ShutDown",
    "re": "NOFLAG PatternError",
    "sys": "exception monitoring",
    "threading": "setprofile_all_threads settrace_all_threads",
    "types": "get_original_bases",
    "typing": """LiteralString Never NoDefault NotRequired ReadOnly Required Self TypeAliasType TypeIs TypeVarTuple Unpack
        assert_never assert_type clear_overloads dataclass_transform get_overloads is_protocol override reveal_type""",
    "warnings": "deprecated",
    # `np.bool` is missing here on purpose: NumPy 1.21 has it, as Python's bool, with a warning.
    "numpy": """acos acosh asin asinh astype atan atan2 atanh bitwise_count bitwise_invert bitwise_left_shift
        bitwise_right_shift bool concat cumulative_prod cumulative_sum dtypes exceptions from_dlpack isdtype long
        matrix_transpose matvec permute_dims pow show_runtime strings trapezoid ulong unique_all unique_counts
        unique_inverse unique_values unstack vecdot vecmat""",
    "numpy.linalg": "cross diagonal matmul matrix_norm matrix_transpose outer svdvals tensordot trace vecdot vector_norm",
    "numpy.random": "get_bit_generator set_bit_generator",
}
NEWER = {(module, name) for module, names in NEWER_NAMES.items() for name in names.split()}
NEWER_BUILTINS = ("BaseExceptionGroup", "ExceptionGroup", "PythonFinalizationError")
NEWER_METHODS = ("add_note", "full_match", "mT", "to_device", "with_segments")  # names of methods of any object
NEWER_ARGUMENTS = {  # function of NumPy -> arguments
    **{name: {"keepdims"} for name in ("argmax", "argmin", "average")},
    **{name: {"stable"} for name in ("argsort", "sort")},
    **{
        name: {"device"}
        for name in ("eye", "full", "full_like", "linspace", "ones", "ones_like", "zeros", "zeros_like")
    },
    **{name: {"casting", "dtype"} for name in ("hstack", "stack", "vstack")},
    **{name: {"method", "weights"} for name in ("nanpercentile", "nanquantile", "percentile", "quantile")},
    **{name: {"correction", "mean"} for name in ("std", "var", "nanstd", "nanvar")},
    **{name: {"initial", "where"} for name in ("nanmax", "nanmin", "nanprod", "nansum")},
    **{name: {"copy", "device"} for name in ("asarray", "asanyarray")},
    "isin": {"kind"},
    "load": {"max_header_size"},
    "reshape": {"copy", "shape"},
    "unique": {"equal_nan", "sorted"},
}
NEWER_GENERICS = {("logging", "LoggerAdapter"), ("logging", "StreamHandler")}  # cannot be subscripted before


def newer(source: str) -> Iterator[str]:
    """Yield the uses in a module of what the least versions do not have.

    What stands under TYPE_CHECKING or a comparison with ``sys.version_info``, and annotations, are not run.
    """
    aliases: dict[str, str] = {}  # name in the module -> module that it is
    todo: list[ast.AST] = [*reversed(ast.parse(source).body)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and re.search("TYPE_CHECKING|version_info", ast.unparse(node.test)):
            todo += reversed(node.orelse)
            continue
        if isinstance(node, _KINDS):
            for found in _uses(node, aliases):
                yield f"line {node.lineno}: {found}"
        for part in reversed(node._fields):
            value = getattr(node, part)
            if isinstance(value, list):
                todo += (child for child in reversed(value) if isinstance(child, ast.AST))
            elif isinstance(value, ast.AST) and part not in ("annotation", "ctx", "returns"):
                todo.append(value)


_KINDS = (ast.Import, ast.ImportFrom, ast.Attribute, ast.Name, ast.Subscript, ast.Call)


def _uses(node: ast.AST, aliases: dict[str, str]) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            for name in names:
                aliases[name.asname or name.name] = name.name
                if name.name in NEWER_MODULES:
                    yield name.name
        case ast.ImportFrom(module=str(module), names=names):
            for name in names:
                aliases[name.asname or name.name] = f"{module}.{name.name}"
                if module in NEWER_MODULES or (module, name.name) in NEWER:
                    yield f"{module}.{name.name}"
        case ast.Attribute(value=value, attr=name):
            is_method = name in NEWER_METHODS and "torch" not in aliases  # torch's tensors have methods of these names
            if is_method or (_module(value, aliases), name) in NEWER:
                yield ast.unparse(node)
        case ast.Name(id=name) if name in NEWER_BUILTINS:
            yield name
        case ast.Subscript(value=ast.Attribute(value=value, attr=name)):
            if (_module(value, aliases), name) in NEWER_GENERICS:
                yield ast.unparse(node)
        case ast.Call(func=ast.Attribute(value=value, attr=name), keywords=keywords):
            given = {keyword.arg for keyword in keywords} & NEWER_ARGUMENTS.get(name, set())
            if given and _module(value, aliases) == "numpy":
                yield f"{ast.unparse(node.func)}({', '.join(sorted(map(str, given)))}=)"


def _module(value: ast.AST, aliases: dict[str, str]) -> str:
    """Return the name of the module that an expression is, such as ``numpy.linalg`` for ``np.linalg``."""
    if isinstance(value, ast.Attribute):
        return f"{_module(value.value, aliases)}.{value.attr}"
    return aliases.get(value.id, "") if isinstance(value, ast.Name) else ""


def bound(lines: list[str], name: str) -> str:
    """Return the least version of the package ``name`` among requirements, its numbers with dots."""
    (found,) = (match[1] for line in lines if (match := re.match(rf"{name}>=([\d.]+)", line)))
    return found


@pytest.fixture(scope="module")
def settings(project_root: Path) -> dict[str, Any]:
    return tomllib.loads((project_root / "pyproject.toml").read_text("utf-8"))


def test_pip_and_ruff_get_the_least_versions(settings: dict[str, Any]) -> None:
    project = settings["project"]
    assert project["requires-python"] == f">={dotted(PYTHON)}"
    assert f"Programming Language :: Python :: {dotted(PYTHON)}" in project["classifiers"]
    assert bound(project["dependencies"], "numpy") == dotted(NUMPY)
    assert bound(project["optional-dependencies"]["board"], "pynq") == dotted(PYNQ)
    assert settings["tool"]["ruff"]["target-version"] == f"py{PYTHON[0]}{PYTHON[1]}"


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("installing.md", f"One wheel serves Python {dotted(PYTHON)} and every later version"),
        ("devices.md", f"| Python | {dotted(PYTHON)} or newer"),
        ("devices.md", f"NumPy {dotted(NUMPY)} or newer"),
        ("devices.md", f"pynq {dotted(PYNQ)} or newer"),
        ("server.md", f"Python {dotted(SERVE_PYTHON)} or newer"),
        ("command-line.md", f"below {dotted(PYTHON)}, or"),
        ("command-line.md", f"below {dotted(NUMPY)}, or"),
        ("command-line.md", f"below {dotted(PYNQ)}, or"),
    ],
)
def test_the_docs_have_the_least_versions(project_root: Path, page: str, text: str) -> None:
    assert text in (project_root / "docs" / page).read_text("utf-8")


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from typing import Self", ["line 1: typing.Self"]),
        ("import tomllib", ["line 1: tomllib"]),
        ("from datetime import UTC, datetime", ["line 1: datetime.UTC"]),
        ("def f():\n    import asyncio\n    return asyncio.timeout(1)", ["line 3: asyncio.timeout"]),
        ("import numpy as np\nx = np.vecdot(a, b)", ["line 2: np.vecdot"]),
        ("import numpy as np\nx = np.linalg.vector_norm(a)", ["line 2: np.linalg.vector_norm"]),
        ("import numpy as np\nx = np.quantile(a, 0.5, method='lower')", ["line 2: np.quantile(method=)"]),
        ("from numpy import linalg\nx = linalg.svdvals(a)", ["line 2: linalg.svdvals"]),
        ("error.add_note('why')", ["line 1: error.add_note"]),
        ("raise ExceptionGroup('both', errors)", ["line 1: ExceptionGroup"]),
        ("import logging\nclass A(logging.StreamHandler[str]): pass", ["line 2: logging.StreamHandler[str]"]),
        ("if TYPE_CHECKING:\n    from typing import Self", []),
        (
            "if sys.version_info >= (3, 11):\n    import tomllib\nelse:\n    from typing import Self",
            ["line 4: typing.Self"],
        ),
        ("import asyncio\nasync def f(limit: asyncio.Timeout) -> asyncio.Timeout: ...", []),
        ("import numpy as np\nx = np.quantile(a, 0.5); y = other.vecdot(a); z = np.sort(a, axis=0)", []),
    ],
)
def test_newer_names_are_found(source: str, found: list[str]) -> None:
    assert [*newer(source)] == found


@pytest.mark.thorough
def test_the_package_uses_no_newer_name(project_root: Path) -> None:
    found = {
        path.relative_to(project_root).as_posix(): uses
        for folder in FOLDERS
        for path in sorted((project_root / folder).rglob("*.py"))
        if (uses := [*newer(path.read_text("utf-8"))])
    }
    server = [name for name in found if name.startswith(SERVER)]
    assert server, "the server needs nothing newer any more: lower SERVE_PYTHON, or remove it"
    assert {name: uses for name, uses in found.items() if name not in server} == {}


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("3.10", (3, 10)),
        ("1.21.5+dfsg", (1, 21, 5)),
        ("1.21.5rc1", (1, 21, 5)),
        ("2.0.0.dev0", (2, 0, 0)),
        ("3rc1.4", (3,)),
        ("unknown", ()),
        ("", ()),
    ],
)
def test_versions_are_read(text: str, numbers: tuple[int, ...]) -> None:
    assert version_numbers(text) == numbers


def test_a_server_on_an_older_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "SERVE_PYTHON", (99, 1))
    with pytest.raises(
        ToolError, match=r"edgedec serve needs Python 99\.1 or newer, and this is 3\..*use edgedec chat"
    ):
        serve._check_packages()
