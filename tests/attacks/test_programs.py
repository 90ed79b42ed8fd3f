"""Refuse damaged and forged programs of the accelerator, with a message that names the file.

A forgery is signed again, as its maker would sign it, so that the check under test is reached and not only the hash.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.bundle.manifest import manifest_hash
from edgedec.errors import BundleError, EdgedecError, UnsupportedError, UsageError
from edgedec.hw.compiler.program import Program
from edgedec.hw.compiler.program_file import CODE, IMAGE, MANIFEST, load_program, save_program
from tests.edgedec.reference.integer_profile.support.make_models import tiny
from tests.sim.support.bench_interpreter import compiled

FILES = (MANIFEST, CODE, IMAGE)
Manifest = dict[str, Any]


@pytest.fixture(scope="module")
def program() -> Program:
    return compiled(tiny("native")[2], slots=2)


@pytest.fixture(scope="module")
def sound_program(program: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "program"
    save_program(program, path)
    return path


@pytest.fixture
def folder(sound_program: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound_program, tmp_path / "program"))


@pytest.fixture(scope="module")
def bits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder to which many copies go."""
    return tmp_path_factory.mktemp("bits")


def sign(folder: Path, manifest: Manifest) -> None:
    """Write a manifest with its hash, which is the last key like the writer's."""
    content = {key: value for key, value in manifest.items() if key != "sha256"} | {"sha256": "0" * 64}
    text = json.dumps(content, indent=1).encode()
    before, _, after = text.rpartition(b"0" * 64)
    (folder / MANIFEST).write_bytes(before + manifest_hash(text, "0" * 64).encode() + after)


def refused(folder: Path, file_name: str, message: str = "", error: type[EdgedecError] = BundleError) -> None:
    with pytest.raises(error, match=message or None) as caught:
        load_program(folder)
    assert str(folder / file_name) in str(caught.value)


def test_a_saved_program_is_loaded(program: Program, sound_program: Path) -> None:
    loaded = load_program(sound_program)
    assert loaded.sha256 == program.sha256
    assert np.array_equal(loaded.image, program.image)
    for name in ("config", "instructions", "names", "commit", "input_beats", "cache_beats", "region_bytes", "host"):
        assert getattr(loaded, name) == getattr(program, name), name


def test_saving_replaces_a_program_and_nothing_else(program: Program, folder: Path, tmp_path: Path) -> None:
    save_program(program, folder)
    assert load_program(folder).sha256 == program.sha256
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"holds no program\.json"):
        save_program(program, tmp_path / "mine")
    assert (tmp_path / "mine" / "notes.txt").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    save_program(program, tmp_path / "empty")
    assert load_program(tmp_path / "empty").sha256 == program.sha256


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=25, deadline=None)
@given(at=st.integers(0, 1 << 30), bit=st.integers(0, 7))
def test_any_changed_bit_is_detected(
    sound_program: Path, tmp_path_factory: pytest.TempPathFactory, name: str, at: int, bit: int
) -> None:
    folder = Path(shutil.copytree(sound_program, tmp_path_factory.mktemp("bit") / "program"))
    data = bytearray((folder / name).read_bytes())
    data[at % len(data)] ^= 1 << bit
    (folder / name).write_bytes(data)
    with pytest.raises((BundleError, UnsupportedError)) as caught:
        load_program(folder)
    assert name in str(caught.value)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("size", [0, 1, -1])
def test_a_cut_file_is_detected(folder: Path, name: str, size: int) -> None:
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:size])
    refused(folder, name)


@pytest.mark.parametrize("name", [CODE, IMAGE])
def test_a_missing_file_is_detected(folder: Path, name: str) -> None:
    (folder / name).unlink()
    refused(folder, name, "missing")


def _code(folder: Path, manifest: Manifest, change: Callable[[bytearray], None]) -> None:
    """Write other instructions, signed."""
    data = bytearray((folder / CODE).read_bytes())
    change(data)
    (folder / CODE).write_bytes(data)
    manifest["files"][CODE] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _set(*path: str, to: Any) -> Callable[[Path, Manifest], None]:
    def change(folder: Path, manifest: Manifest) -> None:
        place = manifest
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = to

    return change


def _bytes(at: int, value: int) -> Callable[[Path, Manifest], None]:
    return lambda folder, manifest: _code(folder, manifest, lambda data: data.__setitem__(at, value))


def _short(folder: Path, manifest: Manifest) -> None:
    """Write an image that ends before the last READ."""
    data = (folder / IMAGE).read_bytes()[:-64]
    (folder / IMAGE).write_bytes(data)
    manifest["files"][IMAGE] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


@pytest.mark.parametrize(
    ("change", "file_name", "message"),
    [
        (_set("config", "slots", to=3), MANIFEST, "of another configuration"),
        (_set("config", "slots", to=9), MANIFEST, "slots must be 1 to 8"),
        (_set("config", "slots", to="2"), MANIFEST, ""),
        (_set("config", "extra", to=1), MANIFEST, "extra"),
        (_set("config", to=[]), MANIFEST, "config must be an object"),
        (_set("host", "vocab", to=1.0), MANIFEST, r"vocab is 1\.0"),
        (_set("host", "vocab", to=0), MANIFEST, "out of range"),
        (_set("host", "residual_fraction", to=1 << 60), MANIFEST, "out of range"),
        (_set("host", "inverse_frequencies", to=["1"]), MANIFEST, "not all numbers"),
        (_set("host", "second_frequencies", to=["1"]), MANIFEST, "second_frequencies are not all numbers"),
        (_set("host", "logits_cap", to=0.0), MANIFEST, "logits_cap must be positive"),
        (_set("host", "logits_cap", to="30"), MANIFEST, "logits_cap is '30'"),
        (_set("host", "more", to=0), MANIFEST, "more"),
        (_set("names", to=["one"]), MANIFEST, "names"),
        (_set("names", to=["\x1b[2J"] * 63), MANIFEST, "63 printable names"),
        (_set("cache_beats", to=1 << 40), MANIFEST, "cache_beats is"),
        (_set("input_beats", to=True), MANIFEST, "input_beats is True"),
        (_set("region_bytes", to=0), MANIFEST, "region_bytes is 0"),
        (_set("input_beats", to=1), CODE, "leaves its buffer"),
        (_set("files", IMAGE, to=None), MANIFEST, "must have bytes and sha256"),
        (_set("files", IMAGE, "bytes", to="12"), IMAGE, "the manifest says"),
        (_set("unknown", to=1), MANIFEST, "unknown or missing keys"),
        (_set("format", to="edgedec-bundle"), MANIFEST, "not a compiled program"),
        (_short, CODE, "leaves its buffer"),
        (_bytes(0, 0), CODE, "does not begin with 'edecprog'"),
        (_bytes(32, 15), CODE, "instruction 0: an instruction has the opcode 15"),
        (_bytes(16, 1), CODE, "it is cut short"),
    ],
)
def test_a_forgery_is_detected(
    folder: Path, change: Callable[[Path, Manifest], None], file_name: str, message: str
) -> None:
    manifest = json.loads((folder / MANIFEST).read_bytes())
    change(folder, manifest)
    sign(folder, manifest)
    refused(folder, file_name, message)


def test_another_version_is_refused(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_bytes())
    sign(folder, manifest | {"version": 1})
    refused(folder, MANIFEST, "version 1, this edgedec reads 2", UnsupportedError)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "", "no compiled program", UsageError)
