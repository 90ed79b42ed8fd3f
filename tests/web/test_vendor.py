"""The packages of npm: unchanged copies, which connect to nothing."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from edgedec.runtime.web import runtime_files
from edgedec.runtime.web.runtime_files import VENDORED, write_runtime

VENDOR = Path(runtime_files.__file__).parent / "vendor"
SITE = Path(runtime_files.__file__).parent / "site"
ROW = re.compile(r"^\| `([^`]+)` \| `[^`]+` \| [\d.]+ \| [\w.-]+ \| `([0-9a-f]{64})` \|$", re.M)
# Calls with which a script reaches a server, another script or a store, or runs a text.
REACHES_OUT = re.compile(
    r"\b(?:fetch|importScripts|XMLHttpRequest|WebSocket|EventSource|sendBeacon|eval|Function)\s*\(|\bimport\s*\("
    r"|\b(?:localStorage|indexedDB|navigator|document|process)\b\s*[.\[]"
)


def code(text: str) -> str:
    """Return JavaScript without its comments, as far as the vendored files need it."""
    return re.sub(r"/\*.*?\*/|(?<![:\"'`\\])//[^\n]*", "", text, flags=re.S)


def test_the_files_are_those_of_the_table() -> None:
    rows = dict(ROW.findall((VENDOR / "README.md").read_text("utf-8")))
    files = {path.relative_to(VENDOR).as_posix(): path for path in VENDOR.rglob("*") if path.is_file()}
    del files["README.md"]
    assert rows == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    assert set(rows) == set(VENDORED)


@pytest.mark.parametrize("name", [name for name in VENDORED if not name.endswith("LICENSE")])
def test_a_package_reaches_nothing_outside(name: str) -> None:
    assert REACHES_OUT.findall(code((VENDOR / name).read_text("utf-8"))) == []


@pytest.mark.parametrize(
    "call", ["fetch('x')", "await import(name)", "eval(text)", "new Function('x')", "navigator.gpu"]
)
def test_the_search_finds_calls(call: str) -> None:
    assert REACHES_OUT.findall(code(f"const x = 1; // a comment\n{call}"))


def test_our_own_files_name_no_address_and_only_one_fetches() -> None:
    files = {path.relative_to(SITE).as_posix(): path.read_text("utf-8") for path in SITE.rglob("*") if path.is_file()}
    assert {
        name for name, text in files.items() if re.search(r"https?://|//[a-z]+\.[a-z]|[\"']data:(?!,)", text)
    } == set()
    assert {name for name, text in files.items() if re.search(r"\bfetch\(|XMLHttpRequest|WebSocket", text)} == {
        "runtime/download.js"
    }


def test_imports_of_a_written_site_lead_to_files_in_it(tmp_path: Path) -> None:
    write_runtime(tmp_path)
    for path in tmp_path.rglob("*.js"):
        for target in re.findall(r"^(?:import|export)[^;]*? from \"([^\"]+)\";", path.read_text("utf-8"), re.M):
            assert (path.parent / target).is_file(), f"{path.name} imports {target}"
    assert "vendor/jinja.LICENSE.txt" in {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
