"""Identify files by their bytes: correct for each kind that is made here, and silent in cases of doubt."""

from __future__ import annotations

import bz2
import gzip
import inspect
import io
import json
import lzma
import os
import pickle
import shlex
import struct
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save as save_safetensors

from edgedec.bundle.file_kinds import PREFIX_BYTES, identify, refusal

LFS = "a pointer of Git LFS, which stands for a file that was not downloaded"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 4200\n"


def zipped(name: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, b"x")
    return file.getvalue()


def tarred(form: int) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        archive.addfile(tarfile.TarInfo("a"))
    return file.getvalue()


def onnx_model() -> bytes:
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "graph", [], [])
    data: bytes = onnx.helper.make_model(graph, producer_name="somebody").SerializeToString()
    return data


def llama2c() -> bytes:
    dim, hidden, layers, heads, vocab, positions = 4, 6, 1, 2, 5, 8
    layer = 2 * dim + 4 * dim * dim + 3 * dim * hidden
    floats = vocab * dim + layers * layer + dim + positions * (dim // heads // 2) * 2
    return struct.pack("<7i", dim, hidden, layers, heads, heads, vocab, positions) + bytes(4 * floats)


def array_file() -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros(3))
    return file.getvalue()


FILES: dict[str, Callable[[], bytes]] = {
    "a GGUF file": lambda: b"GGUF" + struct.pack("<IQQ", 3, 0, 0),
    LFS: lambda: POINTER,
    "a gzip archive": lambda: gzip.compress(b"x"),
    "a bzip2 archive": lambda: bz2.compress(b"x"),
    "an xz archive": lambda: lzma.compress(b"x"),
    "a zip archive": lambda: zipped("a.txt"),
    "a tar archive": lambda: tarred(tarfile.GNU_FORMAT),
    "a zstd archive": lambda: b"\x28\xb5\x2f\xfd\0",
    "a RAR archive": lambda: b"Rar!\x1a\x07\1\0",
    "an HDF5 file": lambda: b"\x89HDF\r\n\x1a\n\0",
    "a TensorFlow Lite model": lambda: b"\x1c\0\0\0TFL3\0",
    "a model in llama.cpp's format before GGUF": lambda: b"tjgg\3\0\0\0",
    "a 7z archive": lambda: b"7z\xbc\xaf\x27\x1c\0\4",
    "a PyTorch file, which holds pickled Python objects": lambda: zipped("archive/data.pkl"),
    "pickled Python objects": lambda: pickle.dumps({"a": list(range(9))}),
    "an archive of NumPy arrays": lambda: zipped("a.npy"),
    "a NumPy array": array_file,
    "a safetensors file": lambda: save_safetensors({"a": np.zeros(3, np.float32)}),
    "a llama2.c checkpoint": llama2c,
    "an ONNX model": onnx_model,
    "a JSON file": lambda: json.dumps({"a": 1}).encode(),
    "a text file": lambda: "Once upon a time – é".encode(),
    "a text file that begins as JSON does": lambda: json.dumps({"a": "b" * 2 * PREFIX_BYTES}).encode(),
    "a web page, which was downloaded in place of the file": lambda: b"<!DOCTYPE html><html></html>",
    "an empty file": lambda: b"",
    "a file of a kind that edgedec does not know": lambda: b"\xff\xfe\xfd" * 50,
}
TRICKY = {
    "GGUF is a format": "a text file",
    "BZh9 is a name": "a text file",
    "abcdTFL3": "a text file",
    '{"a": oops}': "a text file",
    "[link](x)": "a text file",
}


@pytest.mark.parametrize("kind", FILES)
def test_each_kind_of_file_is_identified(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.bin"  # the name says nothing
    path.write_bytes(FILES[kind]())
    assert identify(path).what == kind


def test_a_pax_tar_is_identified(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(tarred(tarfile.PAX_FORMAT))
    assert identify(tmp_path / "x").what == "a tar archive"


@pytest.mark.parametrize("text", TRICKY)
def test_a_text_about_a_format_is_a_text(tmp_path: Path, text: str) -> None:
    (tmp_path / "x").write_text(text)
    assert identify(tmp_path / "x").what == TRICKY[text]


def test_a_character_cut_by_the_prefix_is_text(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("a" * (PREFIX_BYTES - 1) + "é" * 9, "utf-8")
    assert identify(tmp_path / "x").what == "a text file"


FOLDERS = {
    "a bundle": {"manifest.json": b'{"format": "edgedec-bundle", "version": 1}'},
    "a board bundle": {"board.json": b'{"format": "edgedec-board-bundle"}'},
    "a Hugging Face checkpoint": {"config.json": b"{}", "model.safetensors": b""},
    "a checkpoint whose weights are pointers of Git LFS": {"config.json": b"{}", "model.safetensors": POINTER},
    "a Hugging Face checkpoint with pickled weights only": {"config.json": b"{}", "pytorch_model.bin": b""},
    "a Hugging Face folder without weights": {"config.json": b"{}"},
    "an adapter of a model, not a whole one": {"adapter_config.json": b"{}", "adapter_model.safetensors": b""},
    "a folder with GGUF files": {"b.gguf": b"", "a.gguf": b""},
    "a folder of the Hugging Face cache": {"snapshots": b"", "refs": b""},
    "a folder without a model": {"manifest.json": b"{}", "x": b""},
    "an empty folder": {},
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_each_kind_of_folder_is_identified(tmp_path: Path, kind: str) -> None:
    for name, data in FOLDERS[kind].items():
        (tmp_path / name).write_bytes(data)
    assert identify(tmp_path).what == kind


def test_other_files_are_described_without_opening_them(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would block forever
    assert identify(tmp_path / "pipe").what == "neither a file nor a folder"
    for name in ("manifest.json", "board.json", "a.safetensors"):
        os.mkfifo(tmp_path / name)
    assert identify(tmp_path).what == "a folder without a model"
    assert identify(tmp_path / "missing").what == "not readable (No such file or directory)"
    assert identify(Path("a\0b")).what.startswith("not readable (")


@given(st.binary(max_size=400))
def test_any_bytes_are_identified(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any bytes"
    path.write_bytes(data)
    kind = identify(path).what
    assert kind in FILES
    if kind in ("a text file", "a JSON file"):
        data.decode("utf-8")
    if kind == "a JSON file":
        json.loads(data)


@given(st.sampled_from(sorted(FILES)), st.data())
def test_a_truncated_file_is_never_taken_for_another_format(
    tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject
) -> None:
    """Check that the rest of a file may be a text or unknown, and otherwise keeps its kind."""
    whole = FILES[kind]()
    path = tmp_path_factory.getbasetemp() / "truncated"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    harmless = {"an empty file", "a text file", "a JSON file", "a file of a kind that edgedec does not know"}
    assert identify(path).what in harmless | {kind, "a zip archive", "a text file that begins as JSON does"}


@pytest.mark.parametrize(
    ("kind", "expected_kind", "command"),
    [
        ("a GGUF file", "bundle", ["edgedec", "quantize", "PATH", "-o", "my model.edgedec"]),
        ("a llama2.c checkpoint", "bundle", ["edgedec", "quantize", "PATH", "-o", "my model.edgedec"]),
        ("a safetensors file", "checkpoint", ["edgedec", "quantize", "FOLDER", "-o", "a folder.edgedec"]),
        (LFS, "checkpoint", ["git", "-C", "FOLDER", "lfs", "pull"]),
        ("a tar archive", "bundle", ["tar", "-xf", "PATH"]),
        ("a zip archive", "tokenizer", ["unzip", "PATH"]),
    ],
)  # fmt: skip
def test_the_next_command_can_be_pasted(tmp_path: Path, kind: str, expected_kind: str, command: list[str]) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    path = folder / "my model.bin"
    path.write_bytes(FILES[kind]())
    message = refusal(path, expected_kind)  # type: ignore[arg-type]
    assert message.startswith(f"{path}: is {kind}; ")
    paths = {"PATH": str(path), "FOLDER": str(folder)}
    assert message.endswith(": " + shlex.join(paths.get(word, word) for word in command))


def test_a_file_of_a_bundle_names_the_bundle(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(FOLDERS["a bundle"]["manifest.json"])
    assert refusal(tmp_path / "manifest.json", "bundle").endswith(f"name its bundle, which is the folder {tmp_path}")


@pytest.mark.parametrize("name", ["board.json", "tokenizer.json", "weights.bin"])
def test_a_part_of_a_board_bundle_names_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "board.json").write_bytes(FOLDERS["a board bundle"]["board.json"])
    (tmp_path / name).touch()
    message = refusal(tmp_path / name, "board bundle")
    assert message.endswith(f"name its board bundle, which is the folder {tmp_path}")


def test_folders_within_folders(tmp_path: Path) -> None:
    """A folder whose name ends as a file's is no file, so how deep such folders lie does not matter."""
    (tmp_path / "/".join(["a.safetensors"] * 100)).mkdir(parents=True)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 60)
    try:
        what = identify(tmp_path).what
    finally:
        sys.setrecursionlimit(limit)
    assert what == "a folder without a model"


UNKNOWN = "a file of a kind that edgedec does not know"


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (struct.pack("<Q", 8) + b'{"": {}}', "a safetensors file"),
        (struct.pack("<Q", 9) + b'{"": {}}', UNKNOWN),  # the header would end after the file
        (b"24ka" + struct.pack("<I", 1) + b"\xff" * 248, "a llama2.c checkpoint"),
        (b"24ka" + struct.pack("<I", 1) + b"\xff" * 247, UNKNOWN),  # the header has 256 bytes
        (llama2c(), "a llama2.c checkpoint"),
        (llama2c() + b"\xff", UNKNOWN),  # the sizes in the header give the size of the file
        (b"\x80\x04\x95" + struct.pack("<Q", 2) + b"\xff.", "pickled Python objects"),
        (b"\x80\x04\x95" + struct.pack("<Q", 3) + b"\xff.", UNKNOWN),  # the frame would end after the file
        (b"\x08\x01" + onnx_model()[2:], "an ONNX model"),
        (b"\x08\x00" + onnx_model()[2:], UNKNOWN),  # no version 0
    ],
)
def test_a_kind_is_claimed_only_if_the_sizes_fit(tmp_path: Path, data: bytes, what: str) -> None:
    (tmp_path / "x").write_bytes(data)
    assert identify(tmp_path / "x").what == what


@pytest.mark.parametrize("before", [1, 2, 3])
def test_a_character_of_four_bytes_may_be_cut_anywhere(tmp_path: Path, before: int) -> None:
    (tmp_path / "x").write_text("a" * (PREFIX_BYTES - before) + "\N{GRINNING FACE}" * 9, "utf-8")
    assert identify(tmp_path / "x").what == "a text file"


def test_the_working_folder_gives_the_bundle_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my model"
    folder.mkdir()
    for name, data in FOLDERS["a Hugging Face checkpoint"].items():
        (folder / name).write_bytes(data)
    monkeypatch.chdir(folder)
    assert refusal(Path("."), "bundle").endswith("edgedec quantize . -o 'my model.edgedec'")
