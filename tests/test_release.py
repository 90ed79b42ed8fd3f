"""Check that the archives of a release follow from their content alone, and that a check of a release can fail."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib
import io
import platform
import re
import shutil
import subprocess
import tarfile
import tomllib
import zipfile
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from edgedec import __version__

EPOCH = 1_700_000_000
ABOUT = "edgedec_toolchain-9.dist-info"
FILES = {
    "edgedec/__init__.py": b"x = 1\n",
    "edgedec/runtime/z.py": b"",
    f"{ABOUT}/METADATA": b"Name: edgedec-toolchain\n",
    f"{ABOUT}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-linux_x86_64\n",
    f"{ABOUT}/RECORD": b"made anew",
}


@pytest.fixture
def archives(project_root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(project_root / ".ci")
    return importlib.import_module("release_archives")


@pytest.fixture
def checks(archives: Any) -> Any:
    return importlib.import_module("release_checks")


def write_wheel(path: Path, *, backwards: bool) -> Path:
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name in sorted(FILES, reverse=backwards):
            info = zipfile.ZipInfo(name, (2020 + backwards, 1, 1, 0, 0, 0))
            archive.writestr(info, FILES[name])
    return path


def write_sdist(path: Path, *, backwards: bool) -> Path:
    path.parent.mkdir(parents=True)
    with tarfile.open(path, "w:gz") as archive:
        for name in sorted(FILES, reverse=backwards):
            info = tarfile.TarInfo(f"edgedec_toolchain-9/{name}")
            info.size, info.mtime, info.uid, info.mode = len(FILES[name]), 10 + backwards, backwards, 0o664
            archive.addfile(info, io.BytesIO(FILES[name]))
    return path


def test_a_wheel_follows_from_its_files(archives: Any, tmp_path: Path) -> None:
    name = "edgedec_toolchain-9-py3-none-linux_x86_64.whl"
    first, second = (
        archives.repack_wheel(
            write_wheel(tmp_path / f"raw{turn}" / name, backwards=turn), tmp_path / f"made{turn}", "aarch64", EPOCH
        )
        for turn in (False, True)
    )
    assert first.name == second.name == "edgedec_toolchain-9-py3-none-manylinux_2_17_aarch64.whl"
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as archive:
        content = {entry: archive.read(entry) for entry in archive.namelist()}
    assert b"Tag: py3-none-manylinux_2_17_aarch64\n" in content[f"{ABOUT}/WHEEL"]
    assert list(content)[-1] == f"{ABOUT}/RECORD"
    stated = {
        entry: (digest, size) for entry, digest, size in csv.reader(content[f"{ABOUT}/RECORD"].decode().splitlines())
    }
    for entry, data in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        assert stated[entry] == (("", "") if entry.endswith("RECORD") else (f"sha256={digest}", str(len(data))))
    assert {entry: data for entry, data in content.items() if "WHEEL" not in entry and "RECORD" not in entry} == {
        entry: data for entry, data in FILES.items() if "WHEEL" not in entry and "RECORD" not in entry
    }


def test_a_sdist_follows_from_its_files(archives: Any, tmp_path: Path) -> None:
    first, second = (
        archives.repack_sdist(
            write_sdist(tmp_path / f"raw{turn}" / "s.tar.gz", backwards=turn),
            tmp_path / f"made{turn}" / "s.tar.gz",
            EPOCH,
        )
        for turn in (False, True)
    )
    assert first.read_bytes() == second.read_bytes()
    folder = archives.unpack(first, tmp_path / "unpacked") / "edgedec_toolchain-9"
    assert {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    } == FILES


def compiled(folder: Path, source: str, *options: str) -> Path:
    """Compile a library into a folder of a wheel's files and return the folder."""
    (folder / "source.c").write_text(source)
    for name in ("runtime/kernels/libedgedec_kernels.so", "runtime/loop/libedgedec_loop.so"):
        library = folder / "edgedec" / name
        library.parent.mkdir(parents=True)
        subprocess.run(["cc", "-shared", "-fPIC", *options, "-o", library, folder / "source.c"], check=True)
    return folder


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("cc") is None or shutil.which("readelf") is None, reason="needs a C compiler")
def test_checks_of_libraries_find_what_is_planted(checks: Any, archives: Any, tmp_path: Path) -> None:
    def found(source: str, *options: str, machine: str | None = None) -> tuple[str, str]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        compiled(folder, source, *options)
        glibc = "_".join(map(str, archives.needed_glibc(folder)))
        wheel = Path(f"edgedec_toolchain-9-py3-none-manylinux_{glibc}_{machine or here}.whl")
        status, _, detail = checks._content(wheel, folder, tmp_path)
        return status, detail

    here = "x86_64" if subprocess.check_output(["cc", "-dumpmachine"], text=True).startswith("x86_64") else "aarch64"
    assert found("int f(void) { return 1; }")[0] == "ok"
    assert found(f'const char *f(void) {{ return "{tmp_path}/x.c"; }}') == (
        "FAILED",
        f"runtime/kernels/libedgedec_kernels.so names {tmp_path}; runtime/loop/libedgedec_loop.so names {tmp_path}",
    )
    status, detail = found("int f(void) { return 1; }", "-Wl,--no-as-needed", "-lstdc++")
    assert (status, "libstdc++.so.6" in detail) == ("FAILED", True)
    other = "aarch64" if here == "x86_64" else "x86_64"
    assert "is for another machine" in found("int f(void) { return 1; }", machine=other)[1]


def test_a_wheel_without_a_library_fails(checks: Any, tmp_path: Path) -> None:
    status, _, detail = checks._content(
        Path("edgedec_toolchain-9-py3-none-manylinux_2_17_x86_64.whl"), tmp_path, tmp_path
    )
    assert status == "FAILED"
    assert "libedgedec_kernels.so is missing" in detail


def test_another_text_fails(checks: Any, tmp_path: Path) -> None:
    program = tmp_path / "edgedec"
    program.write_text('#!/bin/sh\necho \'{"text": "b", "timings": {"kernel": "scalar"}}\'\n')
    program.chmod(0o755)
    assert checks._same("n", "b", program, home=tmp_path / "home")[0] == "ok"
    assert checks._same("n", "a", program, home=tmp_path / "home") == ("FAILED", "n", "another text: 'b'")


def test_every_python_that_the_package_states_is_tried(project_root: Path, archives: Any) -> None:
    project = tomllib.loads((project_root / "pyproject.toml").read_text("utf-8"))["project"]
    stated = [line.rpartition(" ")[2] for line in project["classifiers"] if re.search(r":: 3\.\d+$", line)]
    tried = importlib.import_module("release").PYTHONS.split(",")
    assert project["requires-python"] == f">={tried[0]}"
    assert tried[: len(stated)] == stated


def test_a_python_that_is_not_here_is_skipped_by_name(
    checks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = Path(f"edgedec_toolchain-9-py3-none-manylinux_2_17_{platform.machine()}.whl")
    monkeypatch.setattr(checks, "output", lambda *_, **__: (True, '{"text": "a"}'))
    monkeypatch.setattr(checks, "find_python", lambda version: None)
    found = islice(checks.runs([wheel], tmp_path, tmp_path, tmp_path / "python", ["3.10", "3.12"]), 2)
    assert list(found) == [
        ("skipped", f"Python {version}", f"there is no python{version} on the PATH or among pyenv's versions")
        for version in ("3.10", "3.12")
    ]


def test_versions_agree(project_root: Path) -> None:
    citation = (project_root / "CITATION.cff").read_text("utf-8")
    assert re.findall(r"(?m)^(cff-version|version): (.+)$", citation) == [
        ("cff-version", "1.2.0"),
        ("version", __version__),
    ]
    assert tomllib.loads((project_root / "pyproject.toml").read_text("utf-8"))["project"]["dynamic"] == ["version"]
    assert re.findall(r"(?m)^(\w[\w-]*):", citation)[:3] == ["cff-version", "message", "title"]
