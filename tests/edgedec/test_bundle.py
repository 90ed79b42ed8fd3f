"""Test sound bundles: the content survives, and opening takes no memory. attacks/test_bundles.py has damaged ones."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgedec.bundle import manifest
from edgedec.bundle.bundle import Bundle, BundleWriter
from edgedec.bundle.manifest import ALIGNMENT, Tokens
from edgedec.errors import BundleError, EdgedecError, UsageError
from edgedec.families import build_graph
from edgedec.schemes import FloatScheme, Int4Scheme, Int8Scheme, Scheme, TernaryScheme, Weight
from tests.edgedec.test_schemes import schemes, shapes
from tests.support.make_tiny import CONFIG, SCHEMES, TOKENIZER, random_parts, write_bundle


def finish(writer: BundleWriter, **changes: Any) -> None:
    fields: dict[str, Any] = {
        "config": {},
        "quantization": {},
        "tokens": Tokens(size=1),
        "tokenizer_json": "{}",
        "chat_template": None,
    }
    writer.finish(**(fields | changes))


def equal(a: Weight, b: Weight) -> bool:
    return type(a) is type(b) and all(np.array_equal(getattr(a, key), getattr(b, key)) for key in vars(a))


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("kind", SCHEMES)
def test_a_model_survives_a_round_trip(tmp_path: Path, kind: str, tied: bool) -> None:
    changes = {"tie_word_embeddings": tied}
    weights = write_bundle(tmp_path / "model", kind, changes=changes)
    bundle = Bundle.open(tmp_path / "model")
    assert bundle.config == {**CONFIG, **changes}
    assert bundle.quantization == {"method": kind}
    assert bundle.tokens == Tokens(size=40, bos=1, eos=(2, 3))
    assert bundle.chat_template == "{{ messages }}\r\n"
    assert json.loads(bundle.tokenizer_file.read_text("utf-8")) == json.loads(TOKENIZER)
    assert set(bundle.tensors) == set(weights) == set(bundle.schemes)
    assert all(equal(bundle.weight(name), weight) for name, weight in weights.items())
    bundle.check(build_graph(bundle.config))


@settings(max_examples=25)
@given(
    st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1), st.tuples(schemes, shapes), max_size=4),
    st.builds(Tokens, size=st.integers(1, 1 << 20), bos=st.none() | st.integers(0, 99), eos=st.just((1, 2))),
    st.none() | st.text(st.characters(codec="utf-8")),
)
def test_any_content_survives_a_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    tensors: dict[str, tuple[Scheme, tuple[int, int]]],
    tokens: Tokens,
    template: str | None,
) -> None:
    path = tmp_path_factory.mktemp("any") / "bündel 1"
    rng = np.random.default_rng(len(tensors))
    parts = {name: random_parts(rng, *arguments) for name, arguments in tensors.items()}
    with BundleWriter.create(path) as writer:
        for name, (scheme, shape) in tensors.items():
            writer.add(name, scheme, shape, parts[name])
        finish(writer, tokens=tokens, chat_template=template)
    bundle = Bundle.open(path)
    assert (bundle.tokens, bundle.chat_template) == (tokens, template)
    assert list(bundle.tensors) == list(tensors)
    for name, (scheme, shape) in tensors.items():
        tensor = bundle.tensors[name]
        assert (tensor.scheme, tensor.shape) == (scheme, shape)
        assert tensor.count == shape[0] * shape[1]
        assert tensor.nbytes == sum(array.nbytes for array in parts[name].values())
        assert all(offset % ALIGNMENT == 0 for offset in tensor.offsets.values())
        for part, array in parts[name].items():
            assert np.array_equal(bundle.array(name, part), array)
            assert bundle.array(name, part).dtype == array.dtype


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_bundle(tmp_path / name)
    write_bundle(tmp_path / "c", seed=1)
    names = sorted(os.listdir(tmp_path / "a"))
    assert names == sorted(os.listdir(tmp_path / "b"))
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in names)
    a, b, c = (Bundle.open(tmp_path / name).sha256 for name in "abc")
    assert a == b != c


def test_the_manifest_hash_is_of_the_file_with_the_hash_zeroed(tmp_path: Path) -> None:
    """Compute it in a way that another program can follow."""
    write_bundle(tmp_path / "model")
    data = (tmp_path / "model" / "manifest.json").read_bytes()
    stated = json.loads(data)["sha256"]
    assert data.count(stated.encode()) == 1
    assert hashlib.sha256(data.replace(stated.encode(), b"0" * 64)).hexdigest() == stated


def test_zeros_elsewhere_are_not_taken_for_the_hash(tmp_path: Path) -> None:
    with BundleWriter.create(tmp_path / "model") as writer:
        finish(writer, config={"name": "0" * 200}, quantization={"sha256": "0" * 64})
    assert Bundle.open(tmp_path / "model").quantization == {"sha256": "0" * 64}


def test_the_tokenizer_hash_ignores_its_spelling(tmp_path: Path) -> None:
    hashes = []
    for name, text in {"a": '{"x": "é", "y": [1, 2]}', "b": '{"y":[1,2],\n"x":"\\u00e9"}', "c": '{"x": 1}'}.items():
        with BundleWriter.create(tmp_path / name) as writer:
            finish(writer, tokenizer_json=text)
        hashes.append(Bundle.open(tmp_path / name).tokenizer_hash)
    assert hashes[0] == hashes[1] != hashes[2]


def test_opening_reads_no_weights_into_memory(tmp_path: Path) -> None:
    scheme, shape = TernaryScheme(planes=3, group_size=64), (1024, 8192)
    rng = np.random.default_rng(0)
    with BundleWriter.create(tmp_path / "model") as writer:
        writer.add("w", scheme, shape, random_parts(rng, scheme, shape))
        writer.add("e", FloatScheme(), (512, 2048), random_parts(rng, FloatScheme(), (512, 2048)))
        finish(writer)
    tracemalloc.start()
    bundle = Bundle.open(tmp_path / "model")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert bundle.file_bytes["weights.bin"] > 10 << 20
    assert peak < 4 << 20


def test_shapes_alone_are_read_without_the_weights(tmp_path: Path) -> None:
    """Check that a model is refused for its size without reading its weights, and that opening it to run reads them
    all.
    """
    scheme, shape = TernaryScheme(planes=1, group_size=0), (64, 64)
    with BundleWriter.create(tmp_path / "model") as writer:
        writer.add("w", scheme, shape, random_parts(np.random.default_rng(0), scheme, shape))
        finish(writer)
    weights = tmp_path / "model/weights.bin"
    weights.write_bytes(bytes(weights.stat().st_size))
    assert Bundle.open(tmp_path / "model", weights=False).schemes == {"w": scheme}
    with pytest.raises(BundleError, match="its hash does not match"):
        Bundle.open(tmp_path / "model")
    weights.write_bytes(b"")
    with pytest.raises(BundleError, match="0 bytes, the manifest says"):
        Bundle.open(tmp_path / "model", weights=False)


def owner(array: NDArray[Any]) -> Any:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.base


def test_arrays_are_views_of_one_mapping(tmp_path: Path) -> None:
    write_bundle(tmp_path / "model", "int8")
    bundle = Bundle.open(tmp_path / "model")
    arrays = [bundle.array(name, part) for name, tensor in bundle.tensors.items() for part in tensor.offsets]
    assert len({id(owner(array)) for array in arrays}) == 1
    assert not any(array.flags.writeable for array in arrays)


@pytest.mark.parametrize(
    "scheme",
    [
        *(FloatScheme(dtype=name) for name in ("float32", "float16", "bfloat16")),
        Int8Scheme(rows=True),
        TernaryScheme(),
        TernaryScheme(group_size=128),
        TernaryScheme(planes=3, group_size=32),
        TernaryScheme(planes=2, group_size=32, half_scales=True),
        TernaryScheme(planes=3, group_size=32, tied=True),
    ],
)
def test_requested_rows_are_read(tmp_path: Path, scheme: Scheme) -> None:
    shape = (9, 43)
    with BundleWriter.create(tmp_path / "model") as writer:
        writer.add("other", FloatScheme(), (5,), {"values": np.ones(5, np.float32)})
        writer.add("table", scheme, shape, random_parts(np.random.default_rng(0), scheme, shape))
        finish(writer)
    bundle = Bundle.open(tmp_path / "model")
    dense, reader = bundle.weight("table").dense(), bundle.row_reader("table")
    for ids in ([0], [8, 0, 8], [], list(range(9))):
        rows = reader.rows(np.array(ids, np.int32))
        assert rows.dtype == np.float32
        assert rows.shape == (len(ids), 43)
        assert np.array_equal(rows, dense[np.array(ids, np.int32)])


@pytest.mark.parametrize("scheme", [Int8Scheme(), Int4Scheme()])
def test_rows_that_are_not_contiguous_are_refused(tmp_path: Path, scheme: Scheme) -> None:
    with BundleWriter.create(tmp_path / "model") as writer:
        writer.add("w", scheme, (4, 40), random_parts(np.random.default_rng(0), scheme, (4, 40)))
        finish(writer)
    with pytest.raises(BundleError, match="tensor w is not stored by rows"):
        Bundle.open(tmp_path / "model").row_reader("w")


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    write_bundle(tmp_path / "model")
    bundle = Bundle.open(tmp_path / "model")
    for ask in (bundle.weight, bundle.row_reader, lambda name: bundle.array(name, "codes")):
        with pytest.raises(BundleError, match=r"model: has no tensor nothing\.weight"):
            ask("nothing.weight")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 38}, r"tensor model\.embed_tokens\.weight is \(41, 36\), the configuration says \(41, 38\)"),
        ({"num_hidden_layers": 3}, r"has no tensor model\.layers\.2\.input_layernorm\.weight"),
        ({"mlp_bias": True}, r"has no tensor model\.layers\.0\.mlp\.gate_proj\.bias"),
    ],
)
def test_a_configuration_that_needs_more_tensors_is_refused(tmp_path: Path, changes: Any, message: str) -> None:
    write_bundle(tmp_path / "model")
    with pytest.raises(BundleError, match=message):
        Bundle.open(tmp_path / "model").check(build_graph({**CONFIG, **changes}))


def test_an_embedding_of_int4_is_refused(tmp_path: Path) -> None:
    graph = build_graph(CONFIG)
    rng = np.random.default_rng(0)
    with BundleWriter.create(tmp_path / "model") as writer:
        for name, spec in graph.weights.items():
            scheme = Int4Scheme() if "embed" in name else FloatScheme()
            writer.add(name, scheme, spec.shape, random_parts(rng, scheme, spec.shape))
        finish(writer, config=CONFIG)
    with pytest.raises(BundleError, match=r"tensor model\.embed_tokens\.weight is int4"):
        Bundle.open(tmp_path / "model").check(graph)


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with BundleWriter.create(tmp_path / "model") as writer:
            writer.add("w", FloatScheme(), (2,), {"values": np.ones(2, np.float32)})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert os.listdir(tmp_path) == []


def test_a_writer_that_was_not_finished_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="finish was not called"), BundleWriter.create(tmp_path / "model"):
        pass
    assert os.listdir(tmp_path) == []


def test_a_writer_takes_only_arrays_of_the_scheme(tmp_path: Path) -> None:
    values = np.ones((2, 3), np.float32)
    with BundleWriter.create(tmp_path / "model") as writer:
        writer.add("w", FloatScheme(), (2, 3), {"values": values})
        with pytest.raises(AssertionError, match="already written"):
            writer.add("w", FloatScheme(), (2, 3), {"values": values})
        with pytest.raises(AssertionError, match="v: values is"):
            writer.add("v", FloatScheme(), (2, 3), {"values": values.T})
        with pytest.raises(AssertionError, match="v: values is"):
            writer.add("v", FloatScheme(), (2, 3), {"values": values.astype(np.float64)})
        # not contiguous, but correct
        writer.add("v", FloatScheme(), (3, 2), {"values": values.T})
        finish(writer)
    assert list(Bundle.open(tmp_path / "model").tensors) == ["w", "v"]


def test_writing_over_a_bundle_replaces_it(tmp_path: Path) -> None:
    write_bundle(tmp_path / "model", "int8")
    opened = Bundle.open(tmp_path / "model")
    before = opened.weight("lm_head.weight").dense()
    write_bundle(tmp_path / "model", "planes3", chat_template=None, seed=5)
    assert Bundle.open(tmp_path / "model").quantization == {"method": "planes3"}
    assert sorted(os.listdir(tmp_path / "model")) == ["manifest.json", "tokenizer.json", "weights.bin"]
    assert os.listdir(tmp_path) == ["model"]
    # An open old bundle keeps its bytes.
    assert np.array_equal(opened.weight("lm_head.weight").dense(), before)


def test_a_missing_bundle_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none: no such bundle; make one with: edgedec quantize"):
        Bundle.open(tmp_path / "none")
    with pytest.raises(UsageError):
        Bundle.open(tmp_path / "a\0b")


@pytest.mark.parametrize("name", ["x" * 5000, "x/" * 5000], ids=["long name", "long path"])
def test_a_name_that_no_system_accepts_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(EdgedecError):
        Bundle.open(tmp_path / name)


def test_ctrl_c_while_a_damaged_bundle_is_verified_is_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It neither becomes the bundle's error, nor waits for the rest of the hash."""
    path = tmp_path / "bundle"
    write_bundle(path, "int8")
    weights = path / "weights.bin"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    stops: list[bool] = []
    begun = threading.Event()

    def hash_file(file: Path, stopped: Callable[[], bool] = lambda: False) -> str:
        if file != weights:
            return real(file)
        begun.set()
        end = time.monotonic() + 60
        while not stopped() and time.monotonic() < end:
            time.sleep(0.001)
        stops.append(stopped())
        return real(file)

    def check_values(*arguments: object) -> None:
        assert begun.wait(60)
        raise KeyboardInterrupt

    real = manifest._hash_file
    monkeypatch.setattr(manifest, "_hash_file", hash_file)
    monkeypatch.setattr(manifest, "_check_values", check_values)
    with pytest.raises(KeyboardInterrupt):
        Bundle.open(path)
    assert stops == [True]


def test_hashing_ends_when_it_is_stopped(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * (3 << 20))
    assert manifest._hash_file(file) == hashlib.sha256(file.read_bytes()).hexdigest()
    assert manifest._hash_file(file, lambda: True) == hashlib.sha256().hexdigest()


def test_an_identity_names_the_tokenizer_in_place_of_the_hash_of_its_file(tmp_path: Path) -> None:
    with BundleWriter.create(tmp_path / "model") as writer:
        finish(writer, tokenizer_identity="ab" * 32)
    assert Bundle.open(tmp_path / "model").tokenizer_hash == "ab" * 32
    with BundleWriter.create(tmp_path / "wrong") as writer:
        finish(writer, tokenizer_identity="ab")
    with pytest.raises(BundleError, match=r"manifest.json: tokenizer_identity must be a SHA-256, not 'ab'"):
        Bundle.open(tmp_path / "wrong")
