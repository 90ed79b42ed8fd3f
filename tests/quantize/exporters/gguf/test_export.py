"""Test bundles as GGUF: they survive a round trip, and the ``gguf`` package reads the same file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import quants
from tokenizers import Tokenizer, models

from edgedec.bundle.bundle import Bundle, BundleWriter
from edgedec.bundle.manifest import Tokens
from edgedec.errors import EdgedecError, UnsupportedError, UsageError
from edgedec.families import build_graph
from edgedec.graph.ops import Embed, Linear
from edgedec.quantize.exporters.gguf.export import export_gguf, readers
from edgedec.quantize.exporters.gguf.file import q8_0
from edgedec.quantize.methods.int8 import quantize_int8
from edgedec.quantize.pipeline import QuantizeOptions, quantize
from edgedec.quantize.readers import open_checkpoint
from edgedec.quantize.readers.tokenizers.byte_tokenizer import to_json
from edgedec.quantize.readers.tokenizers.piece_tokenizer import added_token, post_processor
from edgedec.schemes import FloatScheme, FloatWeight, Int8Scheme, Int8Weight, TernaryScheme, TernaryWeight

CONFIG: Mapping[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 40,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
QWEN = {"model_type": "qwen2"}
QWEN3 = {"model_type": "qwen3"}
BITNET = {"model_type": "bitnet", "rms_norm_eps": 1e-6}
BOS = 38  # id of <s> in ``tokenizer()``


def tokenizer(cut: str = "qwen2") -> str:
    letters = {chr(at + 33): at for at in range(36)} | {"ab": 36, "<s>": 37, "</s>": 38}
    vocab = letters | {"\u0120": 39}
    vocab = {text: at for at, text in enumerate(["a", "b", *[text for text in vocab if text not in "ab"]][:40])}
    return to_json(
        vocab=vocab,
        merges=[("a", "b")] if "ab" in vocab else [],
        added=[added_token(vocab[text], text, special=True) for text in ("<s>", "</s>") if text in vocab],
        cut=cut,
        post=post_processor((vocab["<s>"], "<s>"), None) if "<s>" in vocab else None,
    )


def write_letters(path: Path, count: int) -> Path:
    """Write a byte-level tokenizer whose tokens are the first ``count`` letters, and return ``path``."""
    vocab = {chr(97 + at): at for at in range(count)}
    path.write_text(to_json(vocab=vocab, merges=[], added=[], cut="gpt-2", post=None), "utf-8")
    return path


def write(path: Path, ternary: TernaryScheme | None, changes: Mapping[str, Any] | None = None, seed: int = 0) -> Bundle:
    """Write a random bundle: ternary layers, or int8; head int8, embedding bfloat16 with ternary layers, else int8."""
    config = {**CONFIG, **(changes or {})}
    graph = build_graph(config)
    embedding = next(op.weight for op in graph.operations if isinstance(op, Embed))
    head = graph.operations[-1].weight_names[0]
    matrices = {name for op in graph.operations if isinstance(op, Linear) for name in op.weights} - {head, embedding}
    rng = np.random.default_rng(seed)
    dense: dict[str, Any] = {}
    with BundleWriter.create(path) as writer:
        for name, spec in graph.weights.items():
            values = rng.standard_normal(spec.shape).astype(np.float32) * np.float32(spec.shape[-1] ** -0.5)
            if name in matrices and ternary is not None:
                trits = rng.integers(-1, 2, (ternary.planes, *spec.shape), np.int8)
                scale = np.full(ternary.parts(spec.shape)["scale"].shape, 0.03125, np.float32)
                if ternary.group_size:  # one scale for each 256 columns
                    scale *= np.repeat(rng.integers(1, 3, (*scale.shape[:2], scale.shape[2] * ternary.group_size // 256)),
                                       256 // ternary.group_size, axis=2).astype(np.float32)  # fmt: skip
                writer.add(name, ternary, spec.shape, {"codes": ternary.pack(trits), "scale": scale})
            elif len(spec.shape) == 1:
                writer.add(name, FloatScheme(), spec.shape, {"values": 1 + values})
            elif name == embedding and ternary is not None:
                dense[name] = values.astype(np.float16)
                writer.add(name, FloatScheme(dtype="float16"), spec.shape, {"values": dense[name]})
            else:
                if name == head and config["model_type"] == "bitnet":
                    values = dense[embedding].astype(np.float32)
                codes, scales = quantize_int8(values)
                writer.add(name, Int8Scheme(rows=True), spec.shape, {"codes": codes, "scale": scales})
        writer.finish(
            config=config,
            quantization={"method": "ternary" if ternary else "int8"},
            tokens=Tokens(size=40, bos=BOS, eos=(2, 3)),
            tokenizer_json=tokenizer(),
            chat_template="{{ messages }}",
        )
    return Bundle.open(path)


def again(file: Path, folder: Path, method: str) -> Bundle:
    checkpoint = open_checkpoint(file)
    quantize(checkpoint, folder, QuantizeOptions(method=method), vocab_limit=40)
    return Bundle.open(folder)


def assert_same_codes(first: Bundle, second: Bundle) -> None:
    for name in second.tensors:
        ours, theirs = first.weight(name), second.weight(name)
        if isinstance(ours, TernaryWeight):
            assert isinstance(theirs, TernaryWeight), name
            np.testing.assert_array_equal(ours.trits * (ours.column_scales() > 0), theirs.trits)
            np.testing.assert_array_equal(ours.dense(), theirs.dense())
        elif isinstance(ours, Int8Weight):
            assert isinstance(theirs, Int8Weight), name
            np.testing.assert_array_equal(ours.codes, theirs.codes)
            np.testing.assert_allclose(ours.scale, theirs.scale, rtol=2**-10)
        else:
            assert isinstance(theirs, FloatWeight), name
            np.testing.assert_array_equal(ours.dense(), theirs.dense())


@pytest.mark.thorough(sample=3)
@pytest.mark.parametrize("changes", [{}, QWEN, QWEN3, BITNET, {"rope_interleaved": True}])
@pytest.mark.parametrize("group_size", [0, 128])
def test_trits_survive_a_round_trip(tmp_path: Path, changes: Mapping[str, Any], group_size: int) -> None:
    bundle = write(tmp_path / "a", TernaryScheme(group_size=group_size), changes)
    counts = export_gguf(bundle, tmp_path / "m.gguf")
    assert counts["TQ2_0"] == 14
    actual = again(tmp_path / "m.gguf", tmp_path / "b", "ternary")
    if "rope_interleaved" in changes:  # read as halves, which is the same model
        order = np.arange(256).reshape(4, 32, 2).swapaxes(1, 2).reshape(-1)
        name = "model.layers.1.self_attn.q_proj.weight"
        np.testing.assert_array_equal(bundle.weight(name).dense()[order], actual.weight(name).dense())
        return
    assert_same_codes(bundle, actual)
    assert set(actual.tensors) == set(bundle.tensors)
    # "</s>" has the id 39 here and ends a text in llama.cpp, too.
    assert (actual.tokens.bos, actual.tokens.eos) == (bundle.tokens.bos, (*bundle.tokens.eos, 39))
    assert actual.chat_template == bundle.chat_template


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("changes", [{}, QWEN, {"tie_word_embeddings": True}])
def test_int8_codes_survive_a_round_trip(tmp_path: Path, changes: Mapping[str, Any]) -> None:
    bundle = write(tmp_path / "a", None, changes)
    counts = export_gguf(bundle, tmp_path / "m.gguf")
    assert counts["Q8_0"] == len([tensor for tensor in bundle.tensors.values() if len(tensor.shape) == 2])
    assert_same_codes(bundle, again(tmp_path / "m.gguf", tmp_path / "b", "int8"))


def test_trits_that_fit_no_block_are_written_as_float16(tmp_path: Path) -> None:
    bundle = write(tmp_path / "a", TernaryScheme(), {"hidden_size": 160, "intermediate_size": 352, "head_dim": 40})
    assert export_gguf(bundle, tmp_path / "m.gguf")["F16"] == 15
    assert_same_codes(bundle, again(tmp_path / "m.gguf", tmp_path / "b", "ternary"))


def test_planes_are_written_as_float16(tmp_path: Path) -> None:
    bundle = write(tmp_path / "a", TernaryScheme(planes=2, group_size=64))
    assert export_gguf(bundle, tmp_path / "m.gguf")["F16"] == 15
    name = "model.layers.0.mlp.up_proj.weight"
    np.testing.assert_allclose(
        open_checkpoint(tmp_path / "m.gguf").load(name), bundle.weight(name).dense(), rtol=2**-10
    )


def test_the_package_reads_the_same_file(tmp_path: Path) -> None:
    bundle = write(tmp_path / "a", TernaryScheme())
    export_gguf(bundle, tmp_path / "m.gguf")
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    down = tensors["blk.1.ffn_down.weight"]
    assert (down.tensor_type.name, down.shape.tolist()) == ("TQ2_0", [512, 256])
    dense = bundle.weight("model.layers.1.mlp.down_proj.weight").dense()
    np.testing.assert_array_equal(quants.dequantize(down.data, down.tensor_type), dense)
    head = tensors["output.weight"]
    dense = bundle.weight("lm_head.weight").dense()
    np.testing.assert_allclose(quants.dequantize(head.data, head.tensor_type), dense, rtol=2**-10)
    q = tensors["blk.0.attn_q.weight"]
    dense = bundle.weight("model.layers.0.self_attn.q_proj.weight").dense()
    turned = dense.reshape(4, 2, 32, 256).swapaxes(1, 2).reshape(256, 256)  # the order of llama.cpp's converter
    np.testing.assert_array_equal(quants.dequantize(q.data, q.tensor_type), turned)
    assert reader.fields["llama.rope.freq_base"].contents() == 50000.0
    assert reader.fields["tokenizer.ggml.tokens"].contents()[:2] == ["a", "b"]
    assert reader.fields["tokenizer.ggml.pre"].contents() == "qwen2"


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize("ternary", [TernaryScheme(), TernaryScheme(planes=2, group_size=64), None])
@pytest.mark.parametrize("changes", [{}, QWEN3])
def test_every_matrix_may_be_float16(tmp_path: Path, ternary: TernaryScheme | None, changes: Mapping[str, Any]) -> None:
    """The package reads the file, and its values are those of the bundle, rounded."""
    bundle = write(tmp_path / "a", ternary, changes)
    counts = export_gguf(bundle, tmp_path / "m.gguf", matrix_type="f16")
    assert set(counts) == {"F16", "F32"}
    assert readers(counts) == ""
    tensors = gguf.GGUFReader(tmp_path / "m.gguf").tensors
    assert {len(tensor.shape) == 2: tensor.tensor_type.name for tensor in tensors} == {True: "F16", False: "F32"}
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    for name, tensor in bundle.tensors.items():
        if len(tensor.shape) == 2:
            dense = bundle.weight(name).dense()
            np.testing.assert_array_equal(checkpoint.load(name), dense.astype(np.float16).astype(np.float32))


def test_types_that_exclude_each_other_are_refused(tmp_path: Path) -> None:
    bundle = write(tmp_path / "a", TernaryScheme())
    with pytest.raises(UsageError, match="--type f16 and --trits Q2_0 exclude each other"):
        export_gguf(bundle, tmp_path / "m.gguf", matrix_type="f16", trit_type="Q2_0")
    with pytest.raises(UsageError, match="--type must be one of auto, f16, not 'f61'; did you mean 'f16'"):
        export_gguf(bundle, tmp_path / "m.gguf", matrix_type="f61")


def test_the_readers_of_a_type_are_named(tmp_path: Path) -> None:
    """The package does not know Q2_0, which is why a message says so."""
    bundle = write(tmp_path / "a", TernaryScheme(group_size=64))
    known = gguf.GGMLQuantizationType.__members__
    for trit_type in ("TQ2_0", "Q2_0"):
        text = readers(export_gguf(bundle, tmp_path / "m.gguf", trit_type=trit_type))
        assert text.startswith(f"{trit_type}: llama.cpp since ")
        assert ("not the Python package gguf" in text) == (trit_type not in known)


def test_llama3_rotation_survives_a_round_trip(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    changes = {"rope_scaling": scaling, "rope_theta": 500000.0, "max_position_embeddings": 16384}
    export_gguf(write(tmp_path / "a", None, changes), tmp_path / "m.gguf")
    assert open_checkpoint(tmp_path / "m.gguf").config["rope_scaling"] == scaling


def test_linear_scaling_survives_a_round_trip(tmp_path: Path) -> None:
    bundle = write(tmp_path / "a", None, {"rope_scaling": {"rope_type": "linear", "factor": 4.0}})
    export_gguf(bundle, tmp_path / "m.gguf")
    assert open_checkpoint(tmp_path / "m.gguf").config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (BITNET | {"hidden_act": "relu2"}, r"llama.cpp's bitnet has silu, this model relu2"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, r"rope scaling 'yarn' is not written as GGUF"),
        (QWEN | {"rope_interleaved": True}, r"llama.cpp rotates halves of a qwen2's heads"),
    ],
)
def test_what_llama_cpp_cannot_express_is_refused(tmp_path: Path, changes: Mapping[str, Any], message: str) -> None:
    bundle = write(tmp_path / "a", TernaryScheme(), changes)
    with pytest.raises(UnsupportedError, match=message):
        export_gguf(bundle, tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()


@pytest.mark.parametrize("scale", [1e6, 1e-5, 1e-9])
def test_a_scale_outside_of_float16_is_refused(scale: float) -> None:
    with pytest.raises(UnsupportedError, match=r"tensor a: a scale .* GGML's float16"):
        q8_0("a", np.ones((1, 32), np.int8), np.array([scale], np.float32))


def test_a_tokenizer_of_an_unknown_kind_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tests.quantize.exporters.gguf.test_export.tokenizer",
        lambda: Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>")).to_str(),
    )
    bundle = write(tmp_path / "a", None)
    with pytest.raises(UnsupportedError, match=r"its tokenizer is WordLevel; a GGUF is written with BPE only"):
        export_gguf(bundle, tmp_path / "m.gguf")


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    bundle = write(tmp_path / "a", None)
    (tmp_path / "file").touch()
    with pytest.raises(EdgedecError, match=r"cannot write"):
        export_gguf(bundle, tmp_path / "file" / "m.gguf")


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["llama2-32k.tokenizer.model", "tok512.bin"])
def test_pieces_survive_a_round_trip(tmp_path: Path, shared_data: Path, name: str) -> None:
    """Check that a SentencePiece vocabulary cuts texts as before."""
    from edgedec.quantize.exporters.gguf.tokenizer import vocabulary
    from edgedec.quantize.readers.gguf.header import read_header
    from edgedec.quantize.readers.gguf.tokenizer import gguf_tokenizer
    from edgedec.quantize.readers.tokenizers.tokenizer_file import read_tokenizer
    from tests.quantize.readers.support.make_gguf import file_bytes

    checked = read_tokenizer(shared_data / "tokenizers" / name, 32000)
    (tmp_path / "tokenizer.json").write_text(checked.json, encoding="utf-8")
    size = checked.vocabulary.get_vocab_size()

    class Stub:
        path, tokenizer_file, config = tmp_path, tmp_path / "tokenizer.json", {"vocab_size": size}
        tokens, chat_template = Tokens(size=size, bos=1, eos=(2,)), None

    (tmp_path / "v.gguf").write_bytes(file_bytes(vocabulary(Stub()), []))  # type: ignore[arg-type]
    tokenizer_read = Tokenizer.from_str(gguf_tokenizer(read_header(tmp_path / "v.gguf")))
    for text in (shared_data / "text" / "tinyshakespeare.txt").read_text("utf-8").split("\n")[:300]:
        assert tokenizer_read.encode(text).ids == checked.vocabulary.encode(text).ids, text
        assert tokenizer_read.decode(tokenizer_read.encode(text).ids) == checked.vocabulary.decode(
            checked.vocabulary.encode(text).ids
        )


@pytest.mark.thorough(sample=3)
@pytest.mark.parametrize("scale", [2.0**-15, 2.0**-80, 2.0**17])
@pytest.mark.parametrize("scheme", [Int8Scheme(rows=True), TernaryScheme(), TernaryScheme(planes=2, group_size=64)])
def test_a_matrix_whose_scales_float16_does_not_hold_is_written_as_float32(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, scheme: Int8Scheme | TernaryScheme, scale: float
) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    source = write(tmp_path / "a", scheme if isinstance(scheme, TernaryScheme) else None)
    folder = tmp_path / "b"
    with BundleWriter.create(folder) as writer:
        for one, tensor in source.tensors.items():
            parts = {part: source.array(one, part) for part in tensor.scheme.parts(tensor.shape)}
            if one == name:
                parts["scale"] = np.full_like(parts["scale"], scale)
            writer.add(one, tensor.scheme, tensor.shape, parts)
        writer.finish(
            config=source.config,
            quantization=source.quantization,
            tokens=source.tokens,
            tokenizer_json=tokenizer(),
            chat_template=None,
        )
    bundle = Bundle.open(folder)
    export_gguf(bundle, tmp_path / "m.gguf")
    np.testing.assert_array_equal(open_checkpoint(tmp_path / "m.gguf").load(name), bundle.weight(name).dense())
    assert f"tensor {name} is written as F32, because it has numbers from {scale:.3g} to " in caplog.text
    if isinstance(scheme, TernaryScheme):
        with pytest.raises(UnsupportedError, match=rf"tensor {name} has numbers from .*, so F16 cannot hold it"):
            export_gguf(bundle, tmp_path / "n.gguf", trit_type="F16")
