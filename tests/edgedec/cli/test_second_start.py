"""Test that a large bundle is read once, that later starts notice every change, and that ``--verify`` reads it again."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from edgedec import demo
from edgedec.bundle import manifest, verified
from edgedec.bundle.bundle import Bundle
from edgedec.bundle.manifest import WEIGHTS
from edgedec.bundle.verified import FileState
from edgedec.errors import BundleError
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.kernels.weights import layout_cache
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from tests.edgedec.cli.conftest import Edgedec


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a settled copy of the embedded model, whose checks are remembered in a folder of the test's own."""
    path = tmp_path / "copy.edgedec"
    shutil.copytree(demo.bundle_path(), path, ignore=shutil.ignore_patterns(".*"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    settle(path / WEIGHTS)
    return path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of files that are read to be checked, as they are read."""
    names: list[str] = []
    check_weights, pieces = manifest._check_weights, layout_cache._pieces

    def checked(file: Path, *arguments: object) -> None:
        names.append(file.name)
        check_weights(file, *arguments)  # type: ignore[arg-type]

    def read(path: Path) -> object:
        names.append(path.name)
        return pieces(path)

    monkeypatch.setattr(manifest, "_check_weights", checked)
    monkeypatch.setattr(layout_cache, "_pieces", read)
    return names


def settle(path: Path) -> None:
    while not FileState.of(path).is_settled(time.time_ns()):
        time.sleep(0.005)


def write(bundle: Path, *, verify: bool = False) -> str:
    with Session.open(bundle, threads=1, ctx_size=64, verify=verify) as session:
        return session.generate("Once", n_predict=3, sampling=SamplingConfig(temperature=0)).text


def test_weights_are_read_once(bundle: Path, reads: list[str]) -> None:
    for _ in range(3):
        Bundle.open(bundle)
    assert reads == [WEIGHTS]
    Bundle.open(bundle, verify=True)
    assert reads == [WEIGHTS] * 2


def damage(bundle: Path) -> None:
    """Change a byte of the weights, and give the file its former times and size."""
    file = bundle / WEIGHTS
    before = file.stat()
    with file.open("r+b") as opened:
        opened.seek(100)
        byte = opened.read(1)[0]
        opened.seek(100)
        opened.write(bytes([byte ^ 1]))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("verify", [False, True])
def test_damage_after_the_first_start_is_found(bundle: Path, verify: bool) -> None:
    Bundle.open(bundle)
    damage(bundle)
    with pytest.raises(BundleError, match=r"weights.bin: its hash does not match the manifest"):
        Bundle.open(bundle, verify=verify)


@pytest.mark.thorough
def test_verify_finds_damage_below_the_file_system(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that returns other bytes changes no time, so an ordinary start trusts it; ``verify`` does not."""
    Bundle.open(bundle)
    state = FileState.of(bundle / WEIGHTS)
    damage(bundle)
    monkeypatch.setattr(verified.FileState, "of", lambda path: state)
    Bundle.open(bundle)
    with pytest.raises(BundleError, match="hash does not match"):
        Bundle.open(bundle, verify=True)


@pytest.mark.thorough
def test_another_manifest_checks_the_same_weights_again(bundle: Path, reads: list[str]) -> None:
    """The manifest has the hash, and says which values are checked."""
    Bundle.open(bundle)
    file = bundle / manifest.MANIFEST
    data = file.read_bytes()
    stated = Bundle.open(bundle).sha256
    data = data.replace(b'"created_by": "edgedec ', b'"created_by": "another ')
    file.write_bytes(data.replace(stated.encode(), manifest.manifest_hash(data, stated).encode()))
    Bundle.open(bundle)
    assert reads == [WEIGHTS] * 2


@pytest.mark.thorough
def test_a_session_reads_its_files_once(bundle: Path, reads: list[str]) -> None:
    if usable() is None:
        pytest.skip("there are no CPU kernels, so there is no second file")
    text = write(bundle)
    assert reads == [WEIGHTS, layout_cache.FILE]  # the second is read back after it is written
    assert write(bundle) == text
    assert len(reads) == 2
    assert write(bundle, verify=True) == text
    assert reads[2:] == [WEIGHTS, layout_cache.FILE]


@pytest.mark.thorough
def test_a_damaged_layout_is_written_again(bundle: Path, reads: list[str]) -> None:
    if usable() is None:
        pytest.skip("there are no CPU kernels, so there is no second file")
    text = write(bundle)
    layout = bundle / layout_cache.FILE
    good, before = layout.read_bytes(), layout.stat()
    with layout.open("r+b") as opened:
        opened.seek(5000)
        opened.write(b"\xaa" * 64)
    os.utime(layout, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert write(bundle) == text
    assert layout.read_bytes() == good


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["generate -p Once -n 1 -m", "inspect"])
def test_the_commands_that_verify(edgedec: Edgedec, bundle: Path, reads: list[str], command: str) -> None:
    verify = ["--verify"] * (command != "inspect")
    assert edgedec(*command.split(), bundle, *verify).code == 0
    reads.clear()
    if verify:
        assert edgedec(*command.split(), bundle).code == 0
        assert WEIGHTS not in reads
    assert edgedec(*command.split(), bundle, *verify).code == 0
    assert WEIGHTS in reads
