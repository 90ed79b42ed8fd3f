"""The commands that install missing packages, for this interpreter and this copy of edgedec.

The package index has an unrelated project under the name ``edgedec``, so no command asks an index for edgedec itself. In a
checkout the command installs the checkout; elsewhere it names the requirements that the installed distribution declares.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edgedec.errors import ToolError
from edgedec.toml import parse_toml

__all__ = [
    "DISTRIBUTION",
    "check_installed",
    "install_again",
    "install_extra",
    "install_package",
    "is_installed",
    "pip_install",
    "pip_uninstall",
]

DISTRIBUTION = "edgedec-toolchain"  # the name in pyproject.toml
_UNKNOWN_CHECKOUT = "CHECKOUT"  # placeholder if this copy is neither a checkout nor an installed distribution
_EXTRA = re.compile(r"""\bextra\s*==\s*["']([\w.-]+)["']""")


def install_extra(extra: str) -> str:
    """Return the command that installs the packages of an extra of pyproject.toml, such as ``hdl``.

    Raises:
        KeyError: edgedec has no such extra.
    """
    root = _checkout()
    declared = _declared(root)
    if root is not None or not declared:
        if declared and extra not in declared:
            raise KeyError(f"edgedec has no extra {extra!r}")
        return pip_install("-e", f"{_shown(root) if root else _UNKNOWN_CHECKOUT}[{extra}]")
    return pip_install(*declared[extra])


def check_installed(module: str, *, extra: str, user: str) -> None:
    """Check that a module of an extra can be imported. ``user`` is what needs it, such as ``--format onnx``.

    Raises:
        ToolError: it is not installed; the message has the command that installs the extra.
    """
    if not is_installed(module):
        raise ToolError(f"{user} needs the package {module}, which is not installed; run: {install_extra(extra)}")


def is_installed(module: str) -> bool:
    """Return whether a module can be imported, without importing it."""
    if module in sys.modules:
        return sys.modules[module] is not None
    return find_spec(module) is not None


def install_package(name: str) -> str:
    """Return the command that installs one package, in the version that edgedec requires if it requires one.

    Args:
        name: name of the package or of its module: ``onnxruntime_ep_webgpu`` is ``onnxruntime-ep-webgpu``.
    """
    requirements = [line for lines in _declared(_checkout()).values() for line in lines]
    match = (line for line in requirements if _plain(re.split(r"[^\w.-]", line)[0]) == _plain(name))
    return pip_install(next(match, name.replace("_", "-")))


def install_again() -> str:
    """Return the instruction to install this copy of edgedec again, as the second half of a sentence."""
    root = _checkout()
    if root is None and _declared(None):
        return f"build the wheel of {DISTRIBUTION} again from its checkout, and install it"
    return f"run: {pip_install('-e', _shown(root) if root else _UNKNOWN_CHECKOUT)}"


def pip_install(*arguments: str) -> str:
    """Return a shell command that runs ``pip install`` with ``arguments`` for the running interpreter.

    In an environment without pip, such as uv makes, the command uses uv if it is installed, and Python's ``ensurepip`` if
    not.
    """
    python, has_pip = _interpreter(), find_spec("pip") is not None
    if not has_pip and shutil.which("uv"):
        return shlex.join(["uv", "pip", "install", "--python", python, *arguments])
    command = shlex.join([python, "-m", "pip", "install", *arguments])
    if not has_pip and find_spec("ensurepip") is not None:
        return f"{shlex.join([python, '-m', 'ensurepip'])} && {command}"
    return command


def pip_uninstall(package: str) -> str:
    """Return a shell command that removes a package from the running interpreter."""
    if find_spec("pip") is None and shutil.which("uv"):
        return shlex.join(["uv", "pip", "uninstall", "--python", _interpreter(), package])
    return shlex.join([_interpreter(), "-m", "pip", "uninstall", "-y", package])


def _interpreter() -> str:
    return _shown(Path(sys.executable)) if sys.executable else "python3"


def _plain(name: str) -> str:
    """Return a package's name in the form for comparison, which ignores case and the kind of separator."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _shown(path: Path) -> str:
    """Return a path relative to the working folder if it is inside, or the whole path; symbolic links are kept."""
    try:
        relative = str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):  # elsewhere, or the working folder has been removed
        return str(path)
    return relative if relative == "." or "/" in relative else f"./{relative}"  # a bare word would be a package's name


def _checkout() -> Path | None:
    """Return the folder with edgedec's pyproject.toml if this file is in a checkout, or None."""
    root = Path(__file__).resolve().parents[2]
    return root if _project(root).get("name") == DISTRIBUTION else None


def _project(root: Path) -> dict[str, Any]:
    """Return the table ``project`` of a folder's pyproject.toml; empty if it cannot be read."""
    try:
        project: dict[str, Any] = parse_toml((root / "pyproject.toml").read_text("utf-8")).get("project", {})
    except (OSError, ValueError):
        return {}
    return project


def _declared(root: Path | None) -> Mapping[str, Sequence[str]]:
    """Return the requirements of each extra without their markers; "" has those of edgedec itself. Empty if unknown."""
    if root is not None:
        project = _project(root)
        extras = {"": project["dependencies"], **project["optional-dependencies"]}
        return {extra: [line.partition(";")[0].strip() for line in lines] for extra, lines in extras.items()}
    from importlib.metadata import PackageNotFoundError, requires  # slow to import, and rarely needed

    try:
        lines = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return {}
    declared: dict[str, list[str]] = {}
    for line in lines:
        requirement, _, marker = line.partition(";")
        match = _EXTRA.search(marker)
        declared.setdefault(match[1] if match else "", []).append(requirement.strip())
    return declared
