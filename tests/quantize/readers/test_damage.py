"""Damage valid files: reading them ends in a sound checkpoint or an ``EdgedecError``, in bounded memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.errors import EdgedecError
from edgedec.quantize.readers import open_checkpoint
from tests.quantize.readers.support import make_gguf
from tests.quantize.readers.support.make_checkpoints import write_hf, write_llama2c

_MAX_BYTES = 8 << 20  # bytes of memory; the files have a few kB


@dataclass(frozen=True)
class Subject:
    """Hold a checkpoint and the one file of it that will be damaged."""

    checkpoint: Path
    file: Path
    original: bytes


def _hf(folder: Path) -> tuple[Path, str]:
    return write_hf(folder), "model.safetensors"


def _hf_index(folder: Path) -> tuple[Path, str]:
    return write_hf(folder, shards=2), "model.safetensors.index.json"


def _hf_config(folder: Path) -> tuple[Path, str]:
    return write_hf(folder), "config.json"


def _hf_tokenizer(folder: Path) -> tuple[Path, str]:
    return write_hf(folder), "tokenizer.json"


def _version0(folder: Path) -> tuple[Path, str]:
    return write_llama2c(folder, 0, tied=False), "model.bin"


def _version1(folder: Path) -> tuple[Path, str]:
    return write_llama2c(folder, 1), "model.bin"


def _version2(folder: Path) -> tuple[Path, str]:
    return write_llama2c(folder, 2), "model.bin"


def _tokenizer_bin(folder: Path) -> tuple[Path, str]:
    return write_llama2c(folder), "tokenizer.bin"


def _gguf(folder: Path) -> tuple[Path, str]:
    path = make_gguf.write_model(folder)
    return path, path.name


MAKERS = (_hf, _hf_index, _hf_config, _hf_tokenizer, _version0, _version1, _version2, _tokenizer_bin, _gguf)


@pytest.fixture(scope="module", params=MAKERS, ids=lambda make: make.__name__.strip("_"))
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    make: Callable[[Path], tuple[Path, str]] = request.param
    folder = tmp_path_factory.mktemp("checkpoint")
    checkpoint, name = make(folder)
    return Subject(checkpoint, folder / name, (folder / name).read_bytes())


def read_all(subject: Subject, content: bytes) -> bool:
    """Return whether the checkpoint was read with ``content`` in its file; errors but EdgedecError pass through."""
    subject.file.write_bytes(content)
    refusal = None
    tracemalloc.start()
    try:
        checkpoint = open_checkpoint(subject.checkpoint)
        assert len(checkpoint.tensors) < 100
        for name, info in checkpoint.tensors.items():
            array = checkpoint.load(name)
            assert array.shape == info.shape
            assert array.dtype.name == info.dtype
    except EdgedecError as error:
        refusal = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        subject.file.write_bytes(subject.original)
    assert peak < _MAX_BYTES
    assert refusal is None or str(subject.file.parent) in refusal, "the message names the file"
    return refusal is None


def test_undamaged_files_are_read(subject: Subject) -> None:
    assert read_all(subject, subject.original)


@pytest.mark.thorough(sample=1)
def test_truncated_files_are_read_or_refused(subject: Subject) -> None:
    size = len(subject.original)
    cuts = {*range(min(size, 50)), *range(0, size, max(1, size // 50)), size - 1}
    read = [cut for cut in sorted(cuts) if read_all(subject, subject.original[:cut])]
    assert not read


@pytest.mark.thorough(sample=3)
@given(data=st.data())
@settings(max_examples=20)
def test_flipped_bits_are_read_or_refused(subject: Subject, data: st.DataObject) -> None:
    content = bytearray(subject.original)
    start = st.integers(0, min(len(content), 400) * 8 - 1)  # headers and texts, where bits have consequences
    anywhere = st.integers(0, len(content) * 8 - 1)
    for bit in data.draw(st.lists(st.one_of(start, anywhere), min_size=1, max_size=4)):
        content[bit // 8] ^= 1 << bit % 8
    read_all(subject, bytes(content))


@pytest.mark.thorough(sample=1)
@given(data=st.data())
@settings(max_examples=20)
def test_spliced_files_are_read_or_refused(subject: Subject, data: st.DataObject) -> None:
    """Remove, double, or insert bytes."""
    content, place = subject.original, st.integers(0, len(subject.original))
    first, second = sorted((data.draw(place), data.draw(place)))
    middle = data.draw(
        st.one_of(
            st.just(b""),
            st.just(content[first:second] * 2),
            st.binary(max_size=12),
            st.sampled_from([b"\xff" * 8, b"\0" * 8, b"\xff" * 3 + b"\x7f", b"[[", b'"', b"9" * 20, b"-1", b"null"]),
        )
    )
    read_all(subject, content[:first] + middle + content[second:])


@pytest.mark.thorough(sample=3)
@given(data=st.data())
@settings(max_examples=20)
def test_replaced_numbers_are_read_or_refused(subject: Subject, data: st.DataObject) -> None:
    """Replace a 32-bit or 64-bit number anywhere by one at which programs fail."""
    content = bytearray(subject.original)
    width = data.draw(st.sampled_from([4, 8]))
    value = data.draw(st.sampled_from([0, 1, 3, 1 << 8, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1]))
    at = data.draw(st.integers(0, min(len(content), 300) - width))
    content[at : at + width] = (value % (1 << (8 * width))).to_bytes(width, "little")
    read_all(subject, bytes(content))


@pytest.mark.thorough(sample=3)
@given(content=st.binary(max_size=400))
@settings(max_examples=20)
def test_noise_is_refused(subject: Subject, content: bytes) -> None:
    assert not read_all(subject, content)
