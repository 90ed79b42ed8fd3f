"""Test that objects are kept between compilations, and that nothing out of date is linked."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from edgedec.runtime.kernels import recipe

COMPILER = recipe.find_compiler()
pytestmark = [pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler"), pytest.mark.thorough]


class Project:
    """Two sources, one of which includes a header, in a folder with odd signs, and a compiler that notes its calls."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.kept, self.log = folder / "the #1 $ource", folder / "kept", folder / "log"
        self.folder.mkdir()
        self.write("one.hpp", "constexpr int kOne = 1;\n")
        seen = 'extern "C" __attribute__((visibility("default")))'
        self.write("one.cpp", f'#include <cstdint>\n#include "one.hpp"\n{seen} int32_t one() {{ return kOne; }}\n')
        self.write("two.cpp", 'extern "C" int two() { return 2; }\n')
        self.compiler = folder / "compiler"
        assert COMPILER is not None
        self.compiler.write_text(f'#!/bin/sh\necho "$@" >> "{self.log}"\nexec {" ".join(COMPILER)} "$@"\n')
        self.compiler.chmod(0o755)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def build(self, *extra: str) -> tuple[list[str], int]:
        """Return the names of the sources that were compiled, and the value of ``one`` in the library."""
        self.log.write_text("")
        output = self.folder / "library.so"
        files: list[tuple[Path, tuple[str, ...]]] = [(self.folder / name, ()) for name in ("one.cpp", "two.cpp")]
        self.said = recipe._link([str(self.compiler)], output, files, extra=extra, kind=("-shared",), kept=self.kept)
        calls = self.log.read_text().splitlines()
        copy = self.folder / f"library-{len(list(self.folder.iterdir()))}.so"  # a loaded library stays as it was
        copy.write_bytes(output.read_bytes())
        value: int = ctypes.CDLL(str(copy)).one()
        return [name for name in ("one.cpp", "two.cpp") if any(f"{name} -o" in call for call in calls)], value


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_nothing_is_compiled_twice(project: Project) -> None:
    assert project.build() == (["one.cpp", "two.cpp"], 1)
    assert project.build() == ([], 1)


def test_two_compilations_at_once_compile_nothing_twice(project: Project) -> None:
    files: list[tuple[Path, tuple[str, ...]]] = [(project.folder / name, ()) for name in ("one.cpp", "two.cpp")]

    def build(name: str) -> None:
        recipe._link(
            [str(project.compiler)], project.folder / name, files, extra=(), kind=("-shared",), kept=project.kept
        )

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(build, ("first.so", "second.so")))
    calls = project.log.read_text()
    assert [calls.count(f"{name} -o") for name in ("one.cpp", "two.cpp")] == [1, 1]
    assert (project.folder / "first.so").read_bytes() == (project.folder / "second.so").read_bytes()


def test_what_has_changed_is_compiled_again(project: Project) -> None:
    project.build()
    project.write("one.hpp", "constexpr int kOne = 3;\n")
    assert project.build() == (["one.cpp"], 3)
    project.write("two.cpp", 'extern "C" int two() { return 4; }\n')
    assert project.build() == (["two.cpp"], 3)
    assert project.build("-DNEW=1") == (["one.cpp", "two.cpp"], 3)
    project.compiler.write_text(
        project.compiler.read_text().replace("exec ", 'test "$1" = --version && echo newer\nexec ')
    )
    assert project.build() == (["one.cpp", "two.cpp"], 3)


@pytest.mark.parametrize("damage", ["object", "record", "include"])
def test_what_is_damaged_is_compiled_again(project: Project, damage: str) -> None:
    project.build()
    for path in project.kept.glob("*.o" if damage == "object" else "*.json"):
        path.write_bytes(b"{}" if damage == "include" else path.read_bytes()[:-1])
    assert project.build() == (["one.cpp", "two.cpp"], 1)
    assert project.build() == ([], 1)


def test_a_warning_is_seen_again(project: Project) -> None:
    project.write("two.cpp", 'extern "C" int two(int unused) { return 2; }\n')
    for _ in range(2):
        assert "two.cpp" in project.build()[0]
        assert "unused" in project.said


def test_a_folder_that_cannot_be_written_keeps_nothing(project: Project) -> None:
    project.kept.write_text("a file")
    for _ in range(2):
        assert project.build() == (["one.cpp", "two.cpp"], 1)


def test_those_that_were_used_longest_ago_go(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.build()
    monkeypatch.setattr(recipe, "_MOST_OBJECTS", 1)
    assert project.build("-DNEW=1")[0] == ["one.cpp", "two.cpp"]
    assert len(list(project.kept.glob("*.o"))) == len(list(project.kept.glob("*.json"))) == 1
    assert not list(project.kept.glob(".*"))
