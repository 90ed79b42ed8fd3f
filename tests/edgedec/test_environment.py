"""Test the registry of environment variables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edgedec.environment import DEBUG, PREFIX, VARIABLES
from edgedec.errors import UsageError

# calls that read a variable, in Python and C++
READ = re.compile(r"""(?:environ\.get\(|environ\[|getenv\()\s*"(EDGEDEC_\w+)\"""")


def reads(root: Path) -> dict[str, str]:
    """Return variable -> the file that reads it by its name."""
    files = (
        file
        for folder in ("edgedec", "quantize", "runtime", "boards", "hw", "sim", "benchmarks", "tests")
        for file in (root / folder).rglob("*")
        if file.suffix in {".py", ".cpp", ".hpp"}
    )
    return {name: str(file.relative_to(root)) for file in files for name in READ.findall(file.read_text("utf-8"))}


def test_the_registry_is_the_only_reader(project_root: Path) -> None:
    """Check that Python reads variables through the registry; the kernels' C++ reads one of them itself."""
    assert reads(project_root) == {"EDGEDEC_KERNEL": "runtime/kernels/dispatch.cpp"}
    assert "EDGEDEC_KERNEL" in {variable.name for variable in VARIABLES}


def test_every_variable_is_documented(project_root: Path) -> None:
    text = (project_root / "docs" / "command-line.md").read_text("utf-8")
    for variable in VARIABLES:
        assert variable.name.startswith(PREFIX)
        assert f"| `{variable.name}` | {variable.values} | {variable.meaning} |" in text


@pytest.mark.parametrize(("value", "on"), [("1", True), ("0", False), ("", False), (None, False)])
def test_a_switch_is_on_or_off(monkeypatch: pytest.MonkeyPatch, value: str | None, on: bool) -> None:
    monkeypatch.delenv(DEBUG.name, raising=False)
    if value is not None:
        monkeypatch.setenv(DEBUG.name, value)
    assert DEBUG.is_on() is on


def test_a_switch_with_another_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEBUG.name, "yes")
    with pytest.raises(UsageError, match="environment variable EDGEDEC_DEBUG must be 1 or 0, not 'yes'"):
        DEBUG.is_on()
