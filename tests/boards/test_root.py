"""Test that edgedec runs with the software that a board has, as far as this machine has what that needs."""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgedec.errors import ToolError
from tests.boards import build_python, install, root
from tests.boards.commands import run
from tests.boards.root import TOKENS, main, missing_tools
from tests.runtime.accelerator.support import make_board_bundle

NO_PACKAGES = "cannot be fetched here"
PROCESSORS = {"arm64": "aarch64", "amd64": "x86_64", "armhf": "armv7l"}
# The least NumPy, and the one that Ubuntu 22.04 has.
NUMPY_THERE = {
    ("host", "3.10"): "NumPy 1.21.2",
    ("arm64", "3.10"): "NumPy 1.21.2",
    ("amd64", "3.10"): "NumPy 1.21.5",
    ("armhf", "3.11"): "NumPy 1.24.2",
}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("arch", "python"),
    [("host", "3.10"), ("arm64", "3.10"), ("arm64", "3.11"), ("amd64", "3.10"), ("armhf", "3.11")],
)
def test_texts_are_written_on_the_simulated_board(project_root: Path, tmp_path: Path, arch: str, python: str) -> None:
    """Check the wheel, pynq 3.0.1 and NumPy there. Only Python 3.10 has wheels of the least NumPy."""
    if missing := missing_tools(arch, python):
        pytest.skip(f"there is no {', no '.join(missing)}")
    words = ("--arch", arch, "--python", python, "--folder", tmp_path / "root")
    command = (sys.executable, "-m", "tests.boards.root", *words)
    process = subprocess.run(command, cwd=project_root, capture_output=True, text=True, check=False)
    if NO_PACKAGES in process.stderr:
        pytest.skip(process.stderr)
    assert process.returncode == 0, process.stdout + process.stderr
    _, versions, text, answer, verdict = process.stdout.splitlines()
    assert versions.startswith(f"Python {python}.")
    assert PROCESSORS.get(arch, platform.machine()) in versions
    assert NUMPY_THERE.get((arch, python), "NumPy 1.") in versions
    assert versions.endswith("pynq 3.0.1")
    assert len(text.split()) == len(answer.split()) == TOKENS
    assert verdict == "the same texts as here"


def test_a_missing_program_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    kept = tmp_path / "kept"
    kept.mkdir()
    assert main(["--arch", "arm64", "--folder", str(kept)]) == 3
    assert capsys.readouterr().err.startswith(
        "tests.boards.root: there is no debootstrap (package debootstrap), no dpkg-deb"
    )
    assert main(["--arch", "host", "--folder", str(kept)]) == 3
    assert "there is no python3.10 (with its venv module)" in capsys.readouterr().err
    assert kept.is_dir()


def test_what_a_processor_needs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert missing_tools("armhf", "3.11")[2:] == [
        "qemu-arm-static (package qemu-user-static)",
        "arm-linux-gnueabihf-g++ (package g++-arm-linux-gnueabihf)",
    ]
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert missing_tools("amd64", "3.10")[2:] == ["processor here that runs programs for amd64"]


def refuse_ubuntu(folder: Path, arch: str, release: str, mirror: str, packages: Sequence[str]) -> None:
    """Unpack the packages of Debian, and fail for those of Ubuntu."""
    if release == "jammy":
        raise ToolError("debootstrap failed: E: Failed getting release file")
    (folder / "root/usr/bin").mkdir(parents=True)
    (folder / "root/packages").write_text(" ".join(packages))


@pytest.fixture
def no_ubuntu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(root, "unpack_release", refuse_ubuntu)


@pytest.mark.usefixtures("no_ubuntu")
def test_the_error_without_packages_names_the_stand_in(tmp_path: Path) -> None:
    with pytest.raises(
        ToolError, match=r"packages of jammy for amd64.*cannot be fetched here: .*\n.*--python 3\.11; --arch host"
    ):
        root.make_root(tmp_path, "amd64", "3.10", "", tmp_path)


def test_without_the_keys_of_ubuntu_nothing_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debootstrap would look for Ubuntu's release at Debian, and check it against Debian's keys."""
    monkeypatch.setattr(root, "UBUNTU_KEYS", tmp_path / "keys.gpg")
    monkeypatch.setattr(root, "run", lambda *_, **__: pytest.fail("something was run"))
    with pytest.raises(ToolError, match=r"there is no .*keys\.gpg \(package ubuntu-keyring"):
        root.unpack_release(tmp_path, "amd64", "jammy", "", [])


@pytest.mark.usefixtures("no_ubuntu")
def test_a_python_that_is_built_is_said_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builds = []

    def build(root: Path, archive: Path, folder: Path, triplet: str) -> None:
        builds.append((archive, triplet))
        assert set(build_python.PACKAGES) <= set((root / "packages").read_text().split())
        program = folder / "installed/usr/bin/python3.10"
        program.parent.mkdir(parents=True)
        program.write_text("made")

    monkeypatch.setattr(build_python, "missing_tools", lambda triplet: [])
    monkeypatch.setattr(build_python, "fetch", lambda folder: folder / "archive")
    monkeypatch.setattr(build_python, "_build", build)
    for turn, done in enumerate(("built", "taken as it was built before")):
        folder = tmp_path / str(turn)
        how = root.make_root(folder, "arm64", "3.10", "", tmp_path / "kept")
        assert how.startswith(f"Debian 12 for arm64; Python 3.10.4 {done} from the sources of Ubuntu's package")
        assert "because the packages of jammy for arm64, which has Python 3.10, cannot be fetched here" in how
        assert (folder / "root/usr/bin/python3.10").read_text() == "made"
    assert builds == [(tmp_path / "0/archive", "aarch64-linux-gnu")]


@pytest.mark.usefixtures("no_ubuntu")
def test_a_python_that_cannot_be_built_is_an_error_with_both_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    with pytest.raises(ToolError) as error:
        root.make_root(tmp_path / "folder", "arm64", "3.10", "", tmp_path / "kept")
    first, second, third = str(error.value).splitlines()
    assert "Failed getting release file" in first
    assert second.startswith(
        "Its Python cannot be built either: there is no aarch64-linux-gnu-gcc (package gcc-aarch64-linux-gnu), no make "
        "(package make), no python3.10"
    )
    assert "stand-in: --python 3.11" in third
    assert not (tmp_path / "kept").exists()


def test_sources_of_another_hash_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "served.tar.xz").write_bytes(b"another")
    monkeypatch.setattr(build_python, "ARCHIVE", (tmp_path / "served.tar.xz").as_uri())
    (tmp_path / "folder").mkdir()
    with pytest.raises(
        ToolError, match=rf"served\.tar\.xz has the SHA-256 \w+, not {build_python.SHA256}, and is not used"
    ):
        build_python.fetch(tmp_path / "folder")
    monkeypatch.setattr(build_python, "SHA256", hashlib.sha256(b"another").hexdigest())
    assert build_python.fetch(tmp_path / "folder").read_bytes() == b"another"
    monkeypatch.setattr(build_python, "ARCHIVE", (tmp_path / "not there").as_uri())
    with pytest.raises(ToolError, match="not%20there cannot be fetched"):
        build_python.fetch(tmp_path / "folder")


def test_links_to_libraries_stay_within_the_root(tmp_path: Path) -> None:
    """Without that, the Python that was built had no shared libm, and NumPy 1.21 could not be imported."""
    (tmp_path / "lib/any").mkdir(parents=True)
    (tmp_path / "usr/lib/any").mkdir(parents=True)
    (tmp_path / "lib/any/libm.so.6").write_text("shared")
    (tmp_path / "usr/lib/any/libc.so").write_text("script")
    (tmp_path / "usr/lib/any/libm.so").symlink_to("/lib/any/libm.so.6")
    (tmp_path / "usr/lib/any/libz.so").symlink_to("libc.so")
    build_python.link_within(tmp_path, "any")
    assert (tmp_path / "usr/lib/any/libm.so").readlink() == Path("../../../lib/any/libm.so.6")
    assert (tmp_path / "usr/lib/any/libm.so").read_text() == "shared"
    assert (tmp_path / "usr/lib/any/libz.so").readlink() == Path("libc.so")


def test_a_stand_in_wheel_has_the_version_of_the_root(tmp_path: Path) -> None:
    """Check that pip takes it for the root's own package, and that the index cannot have another of that version."""
    packages = tmp_path / "usr/lib/python3/dist-packages"
    (packages / "numpy-1.24.2.egg-info").mkdir(parents=True)
    (packages / "numpydoc-1.5.dist-info").mkdir()
    version = install.system_version(tmp_path, "numpy")
    assert install.write_stand_in(tmp_path / "wheels", "numpy", version) == "numpy==1.24.2+system"
    (wheel,) = (tmp_path / "wheels").iterdir()
    assert wheel.name == "numpy-1.24.2+system-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as content:
        assert content.read("numpy-1.24.2+system.dist-info/METADATA").endswith(b"\nVersion: 1.24.2+system\n")
    with pytest.raises(ToolError, match="have no pandas for Python"):
        install.system_version(tmp_path, "pandas")


def test_other_texts_are_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(root, "missing_tools", lambda *_: [])
    monkeypatch.setattr(root, "run", lambda *_, **__: "versions here\nw1\nw2\n")
    monkeypatch.setattr(make_board_bundle, "make", lambda *_, **__: SimpleNamespace(write=lambda path: path))
    for texts, code in (("w1\nw2\n", 0), ("w1\nw3\n", 1), ("w1\n", 1)):
        monkeypatch.setattr(root, "write_texts", lambda *_, found=texts: ("how it\nwas made", f"versions\n{found}"))
        assert main(["--arch", "arm64", "--folder", str(tmp_path / "root")]) == code
        assert capsys.readouterr().out.startswith(f"how it was made\nversions\n{texts}")


@pytest.mark.thorough
def test_the_texts_are_two_and_the_answer_is_to_the_message(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    bundle = make_board_bundle.make(tmp_path / "parts", template=root.TEMPLATE).write(tmp_path / "tiny.board")
    command = (sys.executable, root.RUN, "--device", "interpreter", bundle, str(TOKENS))
    answers = []
    for message in (root.MESSAGE, "w4 w6\n"):
        _, text, answer = run(*command, message=message).splitlines()
        answers.append(answer)
        assert len(text.split()) == len(answer.split()) == TOKENS
        assert text != answer
    assert answers[0] != answers[1]
