"""Check that imports follow the arrows of the layers: core <- quantize, hw, boards, runtime <- sim <- API, command line
and demo.

Every import statement counts, inside a function or under TYPE_CHECKING too; so does import_module("a constant"). The one
exemption is the facade, ``edgedec/__init__.py``: every import of a module of the package runs it, so that it must import
nothing, and yet type checkers and editors must see the names of the Python API there. Its imports under TYPE_CHECKING do not
count. No module of the project takes a name of the API from it, which would be an arrow that nothing else shows.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.statements import statements

OUTER = ("quantize", "hw", "boards", "runtime", "sim")
# A module imports from its own layer and those before it.
LAYERS = (("core",), ("quantize", "hw", "boards", "runtime"), ("sim",), ("api", "cli", "demo", "__main__"))
LEVEL = {area: level for level, areas in enumerate(LAYERS) for area in areas}
FACADE = "edgedec"
# packages that only some may import: (package, prefixes of the modules that may)
RESERVED = {
    "torch": ("edgedec.quantize.distil", "edgedec.quantize.demo_pair", "edgedec.quantize.kv_calibration"),
    "transformers": ("edgedec.quantize.distil", "edgedec.quantize.demo_pair"),
    "amaranth": ("edgedec.hw", "edgedec.boards.flows", "edgedec.sim"),
    "amaranth_boards": ("edgedec.boards.flows",),
    "fastapi": ("edgedec.runtime.server",),
    "starlette": ("edgedec.runtime.server",),
    "pydantic": ("edgedec.runtime.server",),
    "uvicorn": ("edgedec.runtime.server",),
}

# packages and modules that are imported without Amaranth, as on a board
WITHOUT_AMARANTH = (
    "edgedec.hw.isa",
    "edgedec.hw.config",
    "edgedec.hw.compiler",
    "edgedec.hw.handoff",
    "edgedec.boards",
    "edgedec.runtime",
    "edgedec.sim.devices.interpreter",
    "edgedec.sim.interpreter",
)
EXCEPT = ("edgedec.boards.flows",)  # the engine that builds bitstreams needs the hardware generator
# packages and modules of runtime, from the lowest: each imports from its own line and those above it
RUNTIME = (
    ("driver", "base"),
    (
        "protocols",
        "row_recipe",
        "capabilities",
        "target_request",
        "run_sizes",
        "model_graph",
        "kv_precision",
        "drafting",
        "visibility",
        "sampling",
    ),
    ("text", "kernels", "loop", "trees", "verifiers", "coupling", "grammar", "cache"),
    ("devices", "rounds", "decoders", "engine"),
    ("accelerator", "gpu"),
    ("targets",),
    ("drafters",),
    ("planning", "run_settings", "pooling"),
    ("session", "text_settings"),
    ("web",),
    ("measure", "deploy", "server"),
)

Imports = dict[str, dict[str, int]]  # module -> imported name -> line


def area(module: str) -> str:
    """Return the folder of the design that a module belongs to; the core if it is none of the others."""
    second = module.split(".")[1] if "." in module else ""
    return second if second in LEVEL else "core"


def within(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def imported_names(tree: ast.AST, module: str, is_package: bool, *, calls: bool = True) -> Iterator[tuple[str, int]]:
    """Return absolute names that a file imports. ``from a import b`` gives a and a.b, because b may be a module.

    ``calls`` is False if the file is known to call neither ``import_module`` nor ``__import__``.
    """
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(tree) if calls else statements(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base, node.lineno
            yield from ((f"{base}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function_name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if function_name in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.args[0].value, node.lineno


def without_typing(tree: ast.Module) -> ast.Module:
    """Return the statements of a module that run: those under ``if TYPE_CHECKING`` are left out."""
    run = [
        node
        for node in tree.body
        if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING")
    ]
    return ast.Module(run, tree.type_ignores)


def read_imports(root: Path) -> Imports:
    """Return the imports of every module in ``root``, by the module's installed name."""
    imports: Imports = {}
    for top in ("edgedec", *OUTER):
        for path in sorted((root / top).rglob("*.py")):
            parts = list(path.relative_to(root).with_suffix("").parts)
            parts = parts if top == "edgedec" else ["edgedec", *parts]
            is_package = parts[-1] == "__init__"
            module = ".".join(parts[:-1] if is_package else parts)
            text = path.read_text("utf-8")
            tree = ast.parse(text, str(path))
            tree = without_typing(tree) if module == FACADE else tree
            calls = "import_module" in text or "__import__" in text
            imports[module] = dict(imported_names(tree, module, is_package, calls=calls))
    return imports


@functools.cache
def project_imports(root: Path) -> Imports:
    """Return ``read_imports`` of a tree that does not change."""
    return read_imports(root)


def reachable(imports: Mapping[str, Mapping[str, int]], start: str) -> set[str]:
    """Return the project's modules that importing ``start`` may run, including the packages above each."""
    visited: set[str] = set()
    pending = [start]
    while pending:
        name = pending.pop()
        parts = name.split(".")
        for module in (".".join(parts[: n + 1]) for n in range(len(parts))):
            if module in imports and module not in visited:
                visited.add(module)
                pending += imports[module]
    return visited


def violations(imports: Imports) -> list[str]:
    """Return one sentence for each arrow that points the wrong way."""
    sentences = []
    siblings: dict[str, set[str]] = {name: set() for name in LAYERS[1]}
    for module, names in imports.items():
        layer = area(module)
        for name, line in names.items():
            top = name.split(".")[0]
            if top in RESERVED and not any(within(module, prefix) for prefix in RESERVED[top]):
                sentences.append(f"{module}:{line} imports {name}; only {', '.join(RESERVED[top])} may")
            if top != "edgedec":
                continue
            imported_layer = area(name)
            base, _, last = name.rpartition(".")
            if base == FACADE and not (name in imports or last in LEVEL or last.startswith("__")):
                sentences.append(
                    f"{module}:{line} imports {last} from the facade; import it from the module that defines it"
                )
            if LEVEL[imported_layer] > LEVEL[layer]:
                sentences.append(f"{module}:{line} imports {name}: {layer} is below {imported_layer}")
            if layer in ("hw", "quantize") and imported_layer == "runtime":
                sentences.append(f"{module}:{line} imports {name}: {layer} never imports runtime")
            if layer in siblings and imported_layer in siblings and layer != imported_layer:
                siblings[layer].add(imported_layer)
    sentences += [
        f"{one} and {other} import each other"
        for one in siblings
        for other in siblings[one]
        if one < other and one in siblings[other]
    ]
    for module in imports:
        forbidden = {"torch", "amaranth"} if area(module) in ("core", "runtime") else set()
        if any(within(module, prefix) for prefix in WITHOUT_AMARANTH) and not any(
            within(module, one) for one in EXCEPT
        ):
            forbidden.add("amaranth")
        for other in sorted(reachable(imports, module)) if forbidden else ():
            for name in {name.split(".")[0] for name in imports[other]} & forbidden:
                sentences.append(f"{module} leads to {name} through {other}")
    return sentences + runtime_violations(imports)


def runtime_violations(imports: Imports) -> list[str]:
    """Return one sentence for each import within runtime that points upwards, and for each package that has no level."""
    level = {f"edgedec.runtime.{name}": at for at, names in enumerate(RUNTIME) for name in names}
    sentences = []
    for module, names in imports.items():
        package = ".".join(module.split(".")[:3])
        if not within(module, "edgedec.runtime") or package == "edgedec.runtime":
            continue
        if package not in level:
            sentences.append(f"{package} has no level in RUNTIME")
            continue
        for name, line in names.items():
            imported_package = ".".join(name.split(".")[:3])
            if level.get(imported_package, 0) > level[package]:
                sentences.append(f"{module}:{line} imports {name}: {package} is below {imported_package}")
    return sentences


# distributions that are imported by other names than their own
_IMPORT_NAMES = {"cocotb": {"cocotb_tools"}, "cocotbext_axi": {"cocotbext"}, "systemrdl_compiler": {"systemrdl"}}


def declared_packages(root: Path) -> set[str]:
    """Return the import names of the default dependencies and the extras."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    names = {re.split(r"[^\w.-]", line)[0].lower().replace("-", "_") for line in lines}
    return names.union(*(_IMPORT_NAMES.get(name, set()) for name in names))


def test_the_project_follows_the_arrows(project_root: Path) -> None:
    imports = project_imports(project_root)
    assert {area(module) for module in imports} >= {"core", *OUTER}, "a folder was not read at all"
    assert violations(imports) == []


def test_every_imported_package_is_a_declared_dependency(project_root: Path) -> None:
    allowed = declared_packages(project_root) | sys.stdlib_module_names | {"edgedec"}
    strangers = {
        f"{module}:{line} imports {name}"
        for module, names in project_imports(project_root).items()
        for name, line in names.items()
        if name.split(".")[0].lower() not in allowed
    }
    assert strangers == set()


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        ("edgedec/bundle/bundle.py", "import edgedec.quantize.int8", "core is below quantize"),
        ("edgedec/bundle/bundle.py", "from edgedec import runtime", "core is below runtime"),
        ("edgedec/bundle/bundle.py", "from edgedec.cli import app", "core is below cli"),
        ("edgedec/bundle/bundle.py", "def f():\n    from edgedec.hw import plan", "core is below hw"),
        ("edgedec/bundle/bundle.py", "if TYPE_CHECKING:\n    from edgedec.boards import Board", "core is below boards"),
        ("edgedec/bundle/bundle.py", "importlib.import_module('edgedec.sim')", "core is below sim"),
        ("edgedec/__init__.py", "from edgedec.runtime.session.session import Session", "core is below runtime"),
        ("edgedec/__init__.py", "def f():\n    import edgedec.api", "core is below api"),
        ("edgedec/__init__.py", "if True:\n    import edgedec.quantize.distil", "core is below quantize"),
        ("runtime/session/session.py", "from edgedec import Session", "imports Session from the facade"),
        ("edgedec/onnx/linear.py", "from ..sim import device", "core is below sim"),
        ("runtime/session/session.py", "import edgedec.sim", "runtime is below sim"),
        ("sim/device.py", "import edgedec.demo", "sim is below demo"),
        ("hw/engine.py", "from edgedec.runtime import protocols", "hw never imports runtime"),
        ("quantize/exporters/page.py", "import edgedec.runtime.gpu", "quantize never imports runtime"),
        (
            "runtime/session/session.py",
            "import torch.nn",
            "edgedec.quantize.demo_pair, edgedec.quantize.kv_calibration may",
        ),
        ("quantize/int8.py", "from torch import nn", "edgedec.quantize.demo_pair, edgedec.quantize.kv_calibration may"),
        ("quantize/distillery.py", "import torch", "edgedec.quantize.demo_pair, edgedec.quantize.kv_calibration may"),
        ("edgedec/cli/app.py", "import torch", "edgedec.quantize.demo_pair, edgedec.quantize.kv_calibration may"),
        ("runtime/session/session.py", "from amaranth.hdl import Module", "only edgedec.hw"),
        (
            "runtime/session/session.py",
            "import edgedec.quantize.distil",
            "session leads to torch through edgedec.quantize",
        ),
        (
            "runtime/session/session.py",
            "import edgedec.boards.flows.build",
            "leads to amaranth through edgedec.hw.blocks",
        ),
        ("quantize/table.py", "import edgedec.runtime.session.session", "quantize and runtime import each other"),
        ("hw/isa/instructions.py", "from amaranth.hdl import Module", "isa.instructions leads to amaranth through"),
        (
            "hw/isa/instructions.py",
            "import edgedec.hw.blocks",
            "isa.instructions leads to amaranth through edgedec.hw.blocks",
        ),
        ("hw/config.py", "import edgedec.hw.blocks", "hw.config leads to amaranth through edgedec.hw.blocks"),
        ("hw/compiler/program.py", "import edgedec.hw.blocks", "program leads to amaranth through edgedec.hw.blocks"),
        ("hw/handoff/read.py", "import edgedec.hw.blocks", "handoff.read leads to amaranth through edgedec.hw.blocks"),
        ("boards/kv260.py", "import edgedec.boards.flows.build", "kv260 leads to amaranth through edgedec.hw.blocks"),
        ("boards/kv260.py", "import amaranth_boards", "only edgedec.boards.flows may"),
        ("runtime/driver/driver.py", "import edgedec.hw.blocks", "driver leads to amaranth through edgedec.hw.blocks"),
        ("runtime/devices/pynq.py", "import edgedec.hw.blocks", "pynq leads to amaranth through edgedec.hw.blocks"),
        ("runtime/targets/onnx.py", "import edgedec.hw.blocks", "onnx leads to amaranth through edgedec.hw.blocks"),
        (
            "runtime/driver/driver.py",
            "import edgedec.runtime.session.session",
            "runtime.driver is below edgedec.runtime.session",
        ),
        (
            "runtime/targets/onnx.py",
            "from edgedec.runtime import session",
            "runtime.targets is below edgedec.runtime.session",
        ),
        ("runtime/new_room/module.py", "import numpy", "edgedec.runtime.new_room has no level in RUNTIME"),
    ],
)
def test_planted_violations_are_reported(tmp_path: Path, path: str, source: str, complaint: str) -> None:
    tree = {
        "edgedec/__init__.py": "if TYPE_CHECKING:\n    from edgedec.quantize.distil import Session",
        "hw/__init__.py": "",
        "hw/blocks.py": "import amaranth",
        "edgedec/bundle/bundle.py": "",
        "boards/__init__.py": "import edgedec.bundle.bundle",
        "boards/ulx3s.py": "from edgedec.hw import config",
        "boards/flows/build.py": "from edgedec.hw import blocks",
        "hw/config.py": "import numpy",
        "quantize/distil/__init__.py": "import torch",
        "runtime/session/session.py": "import numpy",
        "runtime/planning/planning.py": "import edgedec.quantize",
        "sim/device.py": "import edgedec.hw, edgedec.runtime.session.session",
        "edgedec/cli/app.py": "import edgedec.sim.device, edgedec.quantize.distil, edgedec.bundle.bundle",
        "edgedec/demo/__main__.py": "import edgedec.cli.app",
    }

    def found() -> list[str]:
        for name, text in tree.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return violations(read_imports(tmp_path))

    assert found() == []
    tree[path] = source
    assert any(complaint in sentence for sentence in found()), found()
