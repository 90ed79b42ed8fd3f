"""Refuse damaged and forged bundles: with a message that names the file, cheaply, before anything is used.

A forgery is signed again, as its maker would sign it, so that the check under test is reached and not only the hash.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.bundle.bundle import Bundle
from edgedec.bundle.manifest import Tokens
from edgedec.errors import BundleError, EdgedecError, UnsupportedError
from tests.support.make_tiny import write_bundle

_MAX_BYTES = 3 << 20  # bytes of memory; the bundle has 30 kB
FILES = ("manifest.json", "weights.bin", "tokenizer.json", "chat_template.jinja")
Manifest = dict[str, Any]
FLOAT, TERNARY = "model.norm.weight", "lm_head.weight"  # 36 float32 values; 41 x 36 in two planes


@pytest.fixture(scope="module")
def sound_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "model"
    write_bundle(path)
    return path


@pytest.fixture
def model(sound_bundle: Path, tmp_path: Path) -> Path:
    """Return a copy to damage."""
    return Path(shutil.copytree(sound_bundle, tmp_path / "model"))


@contextmanager
def frugal(limit: int = _MAX_BYTES) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit


def refuse(path: Path, message: str, *, error: type[EdgedecError] = BundleError) -> None:
    with frugal(), pytest.raises(error, match=message) as caught:
        Bundle.open(path)
    assert type(caught.value) is error
    assert len(str(caught.value)) < 1000


def signed(manifest: Manifest) -> bytes:
    """Sign like docs/bundle-format.md says: the hash is that of the file with zeros in its place, and it is the last
    key.
    """
    body = {key: value for key, value in manifest.items() if key != "sha256"}
    text = json.dumps(body, indent=1)[:-2]
    zeros = text.encode() + b',\n "sha256": "' + b"0" * 64 + b'"\n}\n'
    return text.encode() + b',\n "sha256": "' + hashlib.sha256(zeros).hexdigest().encode() + b'"\n}\n'


def read(path: Path) -> Manifest:
    manifest: Manifest = json.loads((path / "manifest.json").read_bytes())
    return manifest


def lie(path: Path, change: Callable[[Manifest], object]) -> None:
    manifest = read(path)
    change(manifest)
    (path / "manifest.json").write_bytes(signed(manifest))


def rewrite(path: Path, name: str, data: bytes) -> None:
    """Write other content, with the matching hash."""
    (path / name).write_bytes(data)
    entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    lie(path, lambda manifest: manifest["files"].update({name: entry}))


# --- damage -----------------------------------------------------------------------------------------------------------


@cache
def contents(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in FILES}


@pytest.fixture(scope="module")
def spoiled(sound_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy that the property tests damage and restore again and again."""
    return Path(shutil.copytree(sound_bundle, tmp_path_factory.mktemp("spoiled") / "model"))


def refused_with(spoiled: Path, sound_bundle: Path, name: str, data: bytes) -> None:
    (spoiled / name).write_bytes(data)
    try:
        with pytest.raises((BundleError, UnsupportedError), match=re.escape(str(spoiled / name))):
            Bundle.open(spoiled)
    finally:
        (spoiled / name).write_bytes(contents(sound_bundle)[name])


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("name", FILES)
@settings(max_examples=100)
@given(st.data())
def test_any_changed_byte_is_refused(spoiled: Path, sound_bundle: Path, name: str, data: st.DataObject) -> None:
    original = contents(sound_bundle)[name]
    position = data.draw(st.integers(0, len(original) - 1))
    damaged = bytearray(original)
    damaged[position] ^= data.draw(st.integers(1, 255))
    refused_with(spoiled, sound_bundle, name, bytes(damaged))


@pytest.mark.nightly
@pytest.mark.parametrize("name", FILES)
def test_every_flipped_bit_is_refused(spoiled: Path, sound_bundle: Path, name: str) -> None:
    original = contents(sound_bundle)[name]
    for bit in range(0, 8 * len(original), 1 if len(original) < 20_000 else 61):
        damaged = bytearray(original)
        damaged[bit // 8] ^= 1 << bit % 8
        refused_with(spoiled, sound_bundle, name, bytes(damaged))


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=40)
@given(st.data())
def test_truncation_is_refused(spoiled: Path, sound_bundle: Path, name: str, data: st.DataObject) -> None:
    original = contents(sound_bundle)[name]
    refused_with(spoiled, sound_bundle, name, original[: data.draw(st.integers(0, len(original) - 1))])


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=40)
@given(st.data())
def test_extra_bytes_are_refused(spoiled: Path, sound_bundle: Path, name: str, data: st.DataObject) -> None:
    original, extra = contents(sound_bundle)[name], data.draw(st.binary(min_size=1, max_size=8) | st.just(b"\n"))
    at = data.draw(st.sampled_from([0, len(original)]) | st.integers(0, len(original)))
    refused_with(spoiled, sound_bundle, name, original[:at] + extra + original[at:])


def test_other_spellings_of_the_same_numbers_are_refused(model: Path) -> None:
    """Check this because 1e-05 and 1E-05 are one number, while a manifest is bound byte by byte."""
    file = model / "manifest.json"
    data = file.read_bytes()
    assert b"1e-05" in data
    file.write_bytes(data.replace(b"1e-05", b"1E-05"))
    refuse(model, r"manifest\.json: its hash does not match")
    file.write_bytes(json.dumps(json.loads(data)).encode())
    refuse(model, r"manifest\.json: its hash does not match")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(model: Path, name: str) -> None:
    (model / name).unlink()
    refuse(model, name.replace(".", r"\."))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["folder", "loop", "dangling", "pipe"])
def test_another_kind_of_entry_in_place_of_a_file_is_refused(model: Path, name: str, kind: str) -> None:
    (model / name).unlink()
    match kind:
        case "folder":
            (model / name).mkdir()
        case "loop":
            (model / name).symlink_to(name)
        case "dangling":
            (model / name).symlink_to("nowhere")
        case "pipe":
            os.mkfifo(model / name)
    refuse(model, name.replace(".", r"\."))


def test_a_file_without_read_permission_is_an_error(model: Path) -> None:
    if os.geteuid() == 0:
        # Root may read everything, so a file that cannot be read at all replaces it.
        if not Path("/proc/self/mem").exists():
            pytest.skip("root may read everything here")
        (model / "tokenizer.json").unlink()
        (model / "tokenizer.json").symlink_to("/proc/self/mem")
        rewritten = read(model)["files"]["tokenizer.json"] | {"bytes": 0}
        lie(model, lambda manifest: manifest["files"].update({"tokenizer.json": rewritten}))
        refuse(model, "model: cannot be read: Input/output error")
    else:
        (model / "tokenizer.json").chmod(0)
        refuse(model, "model: cannot be read: Permission denied")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("file", "is a text file; make a bundle with"),  # the magic of GGUF alone is no GGUF file
        ("empty folder", r"holds no manifest\.json"),
        ("loop", "no such bundle|not readable"),
        ("checkpoint", "is a Hugging Face folder without weights"),
    ],
)
def test_what_is_not_a_bundle_is_described(tmp_path: Path, kind: str, message: str) -> None:
    path = tmp_path / "model"
    match kind:
        case "file":
            path.write_bytes(b"GGUF")
        case "empty folder":
            path.mkdir()
        case "checkpoint":
            path.mkdir()
            (path / "config.json").write_text("{}")
        case "loop":
            path.symlink_to(path)
    with pytest.raises(EdgedecError, match=f"model: ({message})"):
        Bundle.open(path)


def test_links_to_sound_files_are_followed(sound_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    for name in FILES:
        (tmp_path / "model" / name).symlink_to(sound_bundle / name)
    assert Bundle.open(tmp_path / "model").sha256 == Bundle.open(sound_bundle).sha256


# --- invalid manifests ------------------------------------------------------------------------------------------------

_NESTED = b'{"format": "edgedec-bundle", "version": 1, "config": %s}'
RAW: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not valid JSON"),
    "binary": (bytes(range(256)), "not valid JSON"),
    "not UTF-8": (b'{"format": "edgedec-bundle\xff"}', "not valid JSON"),
    "UTF-16": (json.dumps({"format": "x"}).encode("utf-16"), "not an edgedec bundle"),
    "a list": (b"[]", "not an edgedec bundle"),
    "a number": (b"1", "not an edgedec bundle"),
    "null": (b"null", "not an edgedec bundle"),
    "another format": (b'{"format": "safetensors", "version": 1}', "not an edgedec bundle"),
    "a format of another type": (b'{"format": ["edgedec-bundle"]}', "not an edgedec bundle"),
    "a key twice": (
        b'{"format": "edgedec-bundle", "format": "edgedec-bundle"}',
        r"not valid JSON \(a key occurs twice",
    ),
    "a key twice below": (_NESTED % b'{"a": 1, "a": 1}', r"not valid JSON \(a key occurs twice"),
    "5000 digits": (_NESTED % (b"1" * 5000), "not valid JSON"),
    "100000 lists": (_NESTED % (b"[" * 100_000), "not valid JSON"),
    "100000 closed lists": (_NESTED % (b"[" * 100_000 + b"]" * 100_000), "not valid JSON"),
    "100000 objects": (_NESTED % (b'{"a":' * 100_000 + b"1" + b"}" * 100_000), "not valid JSON"),
    "no hash": (_NESTED % b"{}", "its hash does not match"),
    "a hash of another type": (b'{"format": "edgedec-bundle", "version": 1, "sha256": 5}', "its hash does not match"),
    "an empty hash": (b'{"format": "edgedec-bundle", "version": 1, "sha256": ""}', "its hash does not match"),
    "a strange hash": (b'{"format": "edgedec-bundle", "version": 1, "sha256": "\\ud800"}', "its hash does not match"),
}


@pytest.mark.parametrize(("data", "message"), RAW.values(), ids=list(RAW))
def test_an_invalid_manifest_is_refused(model: Path, data: bytes, message: str) -> None:
    (model / "manifest.json").write_bytes(data)
    with pytest.raises(BundleError, match=rf"manifest\.json: {message}"):
        Bundle.open(model)


@pytest.mark.parametrize("depth", range(900, 1010, 5))
def test_nesting_near_the_limit_of_the_interpreter_is_refused(model: Path, depth: int) -> None:
    """Check this because input that the parser accepts must not break a later step."""
    manifest = (model / "manifest.json").read_bytes()
    nested = b'"config": {"x": ' + b"[" * depth + b"]" * depth + b", "
    (model / "manifest.json").write_bytes(manifest.replace(b'"config": {', nested))
    refuse(model, r"manifest\.json: (not valid JSON|its hash)")


def test_a_huge_manifest_is_not_read(model: Path) -> None:
    with (model / "manifest.json").open("r+b") as file:
        file.truncate(1 << 40)
    refuse(model, r"manifest\.json: larger than")


@settings(max_examples=50)
@given(st.binary(max_size=200))
def test_any_bytes_in_place_of_a_manifest_are_refused(spoiled: Path, sound_bundle: Path, data: bytes) -> None:
    refused_with(spoiled, sound_bundle, "manifest.json", data)


@pytest.mark.parametrize("version", [0, -1, 1.0, 1.5, True, "1", None, [1]], ids=repr)
def test_an_invalid_version_is_refused(model: Path, version: Any) -> None:
    lie(model, lambda manifest: manifest.update(version=version))
    refuse(model, r"manifest\.json: version must be a positive integer, not ")


@pytest.mark.parametrize("required", [None, "int4", {"int4": 1}, [4], ["int4", None], [["int4"]]], ids=repr)
def test_requirements_that_are_not_a_list_of_names_are_refused(model: Path, required: Any) -> None:
    lie(model, lambda manifest: manifest.update(requires=required))
    refuse(model, r"manifest\.json: requires must be a list of names, not ")


# --- forgeries --------------------------------------------------------------------------------------------------------

Change = Callable[[Manifest], object]


def put(*path: str | int, value: Any) -> Change:
    """Set one place of the manifest."""

    def change(manifest: Manifest) -> None:
        place: Any = manifest
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


def drop(*path: str) -> Change:
    def change(manifest: Manifest) -> None:
        place: Any = manifest
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]

    return change


def tensor(name: str, key: str, value: Any) -> Change:
    return put("tensors", name, key, value=value)


def stack(name: str, part: str, by: int = 0) -> Change:
    """Move a part onto the first bytes of the ternary codes, or ``by`` bytes further."""

    def change(manifest: Manifest) -> None:
        onto = manifest["tensors"][TERNARY]["offsets"]["codes"] + by
        put("tensors", name, "offsets", part, value=onto)(manifest)

    return change


def file(name: str) -> Change:
    return put("files", name, value={"bytes": 1, "sha256": "0" * 64})


def weights_bytes(size: Any) -> Change:
    return put("files", "weights.bin", "bytes", value=size)


def offset(start: Any) -> Change:
    return put("tensors", FLOAT, "offsets", "values", value=start)


HUGE = (1 << 63) - 1
BAD_NAMES = ["../weights.bin", "/etc/passwd", "manifest.json", "", ".", "a\0b", "weights.bin/", "\ud800", "x" * 9999]
NO_OBJECTS: list[Any] = [None, [], "x", 1]
BAD_SHAPES: list[Any] = [None, {}, 36, "36", [], [1] * 9, [1] * 20_000, [2**39] * 5000, [[36]]]
BAD_OFFSETS = [-64, -1, 1, 63, 96, True, False, 0.0, 64.0, None, "0", [0], 1 << 40, HUGE, 10**4000, 1e300]
BAD_SIZES = [0, -1, True, False, 1.0, 36.0, None, "36", [36], HUGE, 1 << 63, 1 << 64, 10**4000, 1e300]
LIES: dict[str, tuple[Change, str]] = {
    "missing key": (drop("quantization"), "the keys quantization are missing"),
    **{
        f"{key} is {value!r}": (put(key, value=value), f"{key} must be an object")
        for key in ("config", "quantization", "tokens", "files", "tensors")
        for value in NO_OBJECTS
    },
    # files
    "no files": (put("files", value={}), "must list weights.bin and tokenizer.json"),
    "no weights": (drop("files", "weights.bin"), "must list weights.bin and tokenizer.json"),
    "no tokenizer": (drop("files", "tokenizer.json"), "must list weights.bin and tokenizer.json"),
    **{f"file {name[:30]!r}": (file(name), "a file's name must have") for name in BAD_NAMES},
    "file as text": (put("files", "weights.bin", value="x" * 9999), "must have bytes and sha256"),
    "file without hash": (drop("files", "weights.bin", "sha256"), "must have bytes and sha256"),
    "file with more": (put("files", "weights.bin", "path", value="/etc/passwd"), "must have bytes and sha256"),
    "hash of another type": (put("files", "weights.bin", "sha256", value=None), "weights.bin: its hash does not match"),
    **{
        f"file of {str(size)[:20]} bytes": (weights_bytes(size), r"weights\.bin: .* the manifest says")
        for size in BAD_SIZES
    },
    # shapes
    **{
        f"shape [{str(size)[:20]}]": (tensor(FLOAT, "shape", [size]), f"{FLOAT}: (impossible shape|values of)")
        for size in BAD_SIZES
    },
    **{
        f"shape {str(shape)[:20]} of {len(str(shape))}": (tensor(FLOAT, "shape", shape), f"{FLOAT}: impossible shape")
        for shape in BAD_SHAPES
    },
    "shape of 2^320 bytes": (tensor(FLOAT, "shape", [2**39] * 8), f"{FLOAT}: values of .* does not fit"),
    "4 MB in a small file": (tensor(FLOAT, "shape", [1 << 20]), f"{FLOAT}: values of 4194304 bytes .* does not fit"),
    "ternary of one dimension": (tensor(TERNARY, "shape", [1476]), "ternary needs two dimensions"),
    "ternary of three dimensions": (tensor(TERNARY, "shape", [41, 6, 6]), "ternary needs two dimensions"),
    # schemes
    "scheme of another kind": (tensor(TERNARY, "scheme", {"kind": "int2"}), f"tensor {TERNARY}: scheme must be one of"),
    "scheme of a list kind": (tensor(TERNARY, "scheme", {"kind": []}), f"tensor {TERNARY}: scheme must be one of"),
    "scheme with more keys": (tensor(FLOAT, "scheme", {"kind": "float", "x": 1}), f"tensor {FLOAT}: "),
    "a plane of 1.0": (tensor(TERNARY, "scheme", {"kind": "ternary", "planes": 1.0}), "planes must be 1, 2 or 3"),
    "three planes for two": (
        tensor(TERNARY, "scheme", {"kind": "ternary", "planes": 3, "group_size": 32}),
        "overlap|does not fit",
    ),
    # offsets
    **{f"offset {str(start)[:20]}": (offset(start), f"{FLOAT}: values of 144 bytes") for start in BAD_OFFSETS},
    "offsets as a list": (tensor(FLOAT, "offsets", [0]), "offsets must name values"),
    "offsets without a part": (drop("tensors", TERNARY, "offsets", "scale"), "offsets must name codes, scale"),
    "offsets of another part": (tensor(FLOAT, "offsets", {"codes": 0}), "offsets must name values"),
    "offsets with more parts": (put("tensors", FLOAT, "offsets", "scale", value=0), "offsets must name values"),
    "one tensor on another": (
        stack(FLOAT, "values"),
        f"tensors ({FLOAT} and {TERNARY}|{TERNARY} and {FLOAT}) overlap",
    ),
    "a part on its sister": (stack(TERNARY, "scale"), f"tensors {TERNARY} and {TERNARY} overlap"),
    "a part in the middle of another": (stack(FLOAT, "values", 64), f"tensors {TERNARY} and {FLOAT} overlap"),
    "the last 32 bytes of another": (stack(FLOAT, "values", 1280), f"tensors {TERNARY} and {FLOAT} overlap"),
    # tensors
    "tensor as text": (put("tensors", FLOAT, value="x" * 9999), f"{FLOAT}: must have shape, scheme and offsets"),
    "tensor without shape": (drop("tensors", FLOAT, "shape"), "must have shape, scheme and offsets"),
    "tensor with more": (tensor(FLOAT, "file", "/etc/passwd"), "must have shape, scheme and offsets"),
    # tokens
    "tokens without size": (drop("tokens", "size"), "tokens must have size, bos and a list eos"),
    "tokens with more": (put("tokens", "pad", value=0), "tokens must have size, bos and a list eos"),
    "eos as text": (put("tokens", "eos", value="abc"), "tokens must have size, bos and a list eos"),
    **{
        f"{key} {str(value)[:20]}": (put("tokens", key, value=value), "is not a token id")
        for key in ("size", "bos")
        for value in (-1, True, 1.0, "1", [1], 1 << 31, 10**4000, 1e300)
    },
    "no size": (put("tokens", "size", value=None), "is not a token id"),
    **{
        f"eos [{value!r}]": (put("tokens", "eos", value=[2, value]), "is not a token id")
        for value in (-1, None, True, "2", 2.0)
    },
    "a size of 0": (put("tokens", "size", value=0), r"tokens: size 0 is not in 1\.\.41;"),
    "a size past the vocabulary": (put("tokens", "size", value=42), r"tokens: size 42 is not in 1\.\.41;"),
    "a vocabulary below the size": (put("config", "vocab_size", value=39), r"tokens: size 40 is not in 1\.\.39;"),
    "a vocabulary below 1": (put("config", "vocab_size", value=-1), r"tokens: size 40 is not in 1\.\.-1;"),
    "a size of 0 without a vocabulary": (
        lambda manifest: manifest.update(config={}, tokens={"size": 0, "bos": None, "eos": []}),
        r"tokens: size 0 is not in 1\.\.2147483647;",
    ),
    "bos past the vocabulary": (put("tokens", "bos", value=41), "tokens: id 41 is not below the vocabulary's 41;"),
    "eos past the vocabulary": (put("tokens", "eos", value=[2, 99]), "tokens: id 99 is not below the vocabulary's 41;"),
}


@pytest.mark.parametrize(("change", "message"), LIES.values(), ids=list(LIES))
def test_a_forged_manifest_is_refused(model: Path, change: Change, message: str) -> None:
    lie(model, change)
    refuse(model, message)


def test_the_last_ids_of_the_vocabulary_are_accepted(model: Path) -> None:
    lie(model, put("tokens", value={"size": 41, "bos": 40, "eos": [40, 0]}))
    assert Bundle.open(model).tokens == Tokens(size=41, bos=40, eos=(40, 0))
    lie(model, put("tokens", "size", value=1))
    assert Bundle.open(model).tokens.size == 1


@pytest.mark.parametrize("place", [("config", "rms_norm_eps"), ("config", "x"), ("tensors", FLOAT, "shape")], ids=str)
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1.5E+999", "9" * 999 + ".0"])
def test_numbers_outside_of_json_are_refused(model: Path, place: tuple[str, ...], value: str) -> None:
    """Check this because Python would read them as floats that no configuration means."""
    manifest = read(model)
    put(*place, value=123456789)(manifest)
    manifest["sha256"] = "0" * 64
    unsigned = json.dumps(manifest).replace("123456789", value).encode()
    digest = hashlib.sha256(unsigned).hexdigest().encode()
    (model / "manifest.json").write_bytes(digest.join(unsigned.rsplit(b"0" * 64, 1)))
    refuse(model, r"manifest\.json: not valid JSON \('.*' is not a finite number\)")


def test_the_smallest_numbers_are_read(model: Path) -> None:
    lie(model, put("config", "x", value=[5e-324, 1.7976931348623157e308]))
    assert Bundle.open(model).config["x"] == [5e-324, 1.7976931348623157e308]


def test_names_outside_of_the_folder_are_not_opened(model: Path) -> None:
    outside = model.parent / "outside.bin"
    outside.write_bytes(b"secret")
    entry = {"bytes": 6, "sha256": hashlib.sha256(b"secret").hexdigest()}
    lie(model, put("files", "../outside.bin", value=entry))
    refuse(model, r"lists the file '\.\./outside\.bin'")


def values(sound_bundle: Path, name: str, part: str) -> tuple[int, int]:
    """Return the offset and the bytes of a stored array."""
    entry = Bundle.open(sound_bundle).tensors[name]
    return entry.offsets[part], entry.scheme.parts(entry.shape)[part].nbytes


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("name", "part"), [(FLOAT, "values"), (TERNARY, "scale"), ("model.embed_tokens.weight", "values")]
)
def test_a_scale_that_is_not_finite_is_refused(
    model: Path, sound_bundle: Path, name: str, part: str, value: float
) -> None:
    start, nbytes = values(sound_bundle, name, part)
    data = bytearray((model / "weights.bin").read_bytes())
    data[start + nbytes - 4 : start + nbytes] = np.float32(value).tobytes()
    rewrite(model, "weights.bin", bytes(data))
    refuse(model, rf"weights\.bin: tensor {name}: its {part} holds NaN or infinity")


@pytest.fixture(params=[1 << 20, 64], ids=["one chunk", "many chunks"])
def chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make chunks small, because values are checked as they are read, and any chunk may hold an invalid one."""
    monkeypatch.setattr("edgedec.bundle.manifest._CHUNK_BYTES", request.param)


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("shift", [0, 2, 4, 6])
@pytest.mark.parametrize("byte", [0, 63, 64, -1])
def test_a_code_without_a_trit_is_refused(model: Path, sound_bundle: Path, byte: int, shift: int) -> None:
    """Check this because kernels that read the mapped codes would use it as -2."""
    start, nbytes = values(sound_bundle, TERNARY, "codes")
    data = bytearray((model / "weights.bin").read_bytes())
    data[start + byte % nbytes] &= ~(3 << shift)
    rewrite(model, "weights.bin", bytes(data))
    refuse(model, rf"weights\.bin: tensor {TERNARY}: its codes are not trits")


def test_every_byte_of_trits_is_accepted(model: Path, sound_bundle: Path) -> None:
    """Write the codes 1, 2 and 3 in every combination, in a row without padding: its first 8 bytes are the first
    block.
    """
    start, _ = values(sound_bundle, TERNARY, "codes")
    data = bytearray((model / "weights.bin").read_bytes())
    for first in range(0, 256, 8):
        block = [byte for byte in range(first, first + 8) if all(byte >> shift & 3 for shift in (0, 2, 4, 6))]
        data[start : start + len(block)] = bytes(block)
        rewrite(model, "weights.bin", bytes(data))
        assert Bundle.open(model).array(TERNARY, "codes").reshape(-1)[: len(block)].tolist() == block


def test_padding_that_is_not_zero_is_refused(model: Path, sound_bundle: Path) -> None:
    start, _ = values(sound_bundle, TERNARY, "codes")
    data = bytearray((model / "weights.bin").read_bytes())
    data[start + 15] = 0b11_10_10_10  # the last of 64 columns, of which 36 are the matrix's
    rewrite(model, "weights.bin", bytes(data))
    bundle = Bundle.open(model)
    with pytest.raises(BundleError, match=rf"weights\.bin: tensor {TERNARY}: its codes are not trits"):
        bundle.weight(TERNARY)


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("byte", [0, 63, 64, -1])
@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight"])
def test_an_int8_code_of_minus_128_is_refused(tmp_path: Path, name: str, byte: int) -> None:
    model = tmp_path / "model"
    write_bundle(model, "int8", changes={"tie_word_embeddings": True})
    start, nbytes = values(model, name, "codes")
    data = bytearray((model / "weights.bin").read_bytes())
    for code in (-127, -128):
        data[start + byte % nbytes] = code & 0xFF
        rewrite(model, "weights.bin", bytes(data))
        if code == -127:
            Bundle.open(model)
    refuse(model, rf"weights\.bin: tensor {name}: its codes are not in -127\.\.127")


def test_a_template_that_is_not_utf8_is_refused(model: Path) -> None:
    rewrite(model, "chat_template.jinja", b"{{ \xff }}")
    bundle = Bundle.open(model)
    with pytest.raises(BundleError, match=r"chat_template\.jinja: .*utf-8"):
        _ = bundle.chat_template


def test_an_unlisted_template_is_not_used(model: Path) -> None:
    lie(model, drop("files", "chat_template.jinja"))
    assert Bundle.open(model).chat_template is None


def test_a_bundle_without_weights_is_refused(model: Path) -> None:
    lie(model, put("tensors", value={}))
    rewrite(model, "weights.bin", b"")
    assert Bundle.open(model).tensors == {}


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if path:
        yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


@pytest.mark.thorough
@settings(max_examples=150)
@given(st.data())
def test_any_forgery_is_refused_or_consistent(spoiled: Path, sound_bundle: Path, data: st.DataObject) -> None:
    """Set another value at one place: the bundle is refused, or consistent with its files."""
    manifest = read(sound_bundle)
    place = data.draw(st.sampled_from([path for path in places(manifest) if path != ("sha256",)]))
    put(*place, value=data.draw(json_values | st.sampled_from([0, 1, 64, 128, 2**63, True, "float", [36], {}])))(
        manifest
    )
    (spoiled / "manifest.json").write_bytes(signed(manifest))
    complaint = ""
    try:
        with frugal():
            bundle = Bundle.open(spoiled)
            for name, entry in bundle.tensors.items():
                for part in entry.offsets:
                    bundle.array(name, part)
    except (BundleError, UnsupportedError) as error:
        complaint = str(error)
    finally:
        (spoiled / "manifest.json").write_bytes(contents(sound_bundle)["manifest.json"])
    assert not complaint or re.match(rf"{re.escape(str(spoiled))}/({'|'.join(FILES)}): ", complaint)
