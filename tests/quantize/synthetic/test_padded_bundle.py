"""Test that a padded model computes the same as the small one, to the last bit, and that inexact padding is refused."""

from __future__ import annotations

import json
import logging
import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edgedec import demo
from edgedec.bundle.bundle import Bundle, BundleWriter
from edgedec.errors import BundleError, UsageError
from edgedec.quantize.pipeline import QuantizeOptions, quantize
from edgedec.quantize.readers import open_checkpoint
from edgedec.quantize.synthetic.padded_bundle import SIZES, pad_bundle
from edgedec.quantize.synthetic.random_bundle import SHAPES
from edgedec.runtime.kernels import load
from edgedec.runtime.protocols import Limits, Pass
from edgedec.runtime.sampling.sampling import Sampler, SamplingConfig
from edgedec.runtime.session.session import Session
from edgedec.runtime.targets import open_target
from edgedec.runtime.text.tokenizer import Tokenizer
from edgedec.schemes import FloatScheme, Int8Weight, TernaryScheme, TernaryWeight
from tests.quantize.readers.support import make_ternary_gguf as maker
from tests.support.make_tiny import write_bundle

F32 = NDArray[np.float32]

# Two key/value heads of four; the MLP of Llama has no norm, so its width may grow by any amount.
SMALL: Mapping[str, Mapping[str, Any]] = {
    "llama": {"hidden_size": 32, "head_dim": 16, "tie_word_embeddings": False},
    "bitnet": {
        "model_type": "bitnet",
        "hidden_size": 32,
        "intermediate_size": 64,
        "head_dim": 8,
        "tie_word_embeddings": False,
    },
}
LARGE: Mapping[str, Mapping[str, Any]] = {
    "llama": dict(zip(SIZES, (128, 90, 5, 6, 67), strict=True)),
    "bitnet": dict(zip(SIZES, (128, 256, 3, 16, 50), strict=True)),
}
PASSES = (7, 1, 1, 3, 8, 1)  # rows of each pass: a prompt, single tokens, drafts


def small_bundle(path: Path, kind: str = "native", family: str = "llama", **changes: Any) -> Bundle:
    write_bundle(path, kind, changes={**SMALL[family], **changes})
    return Bundle.open(path)


def pad(source: Bundle, path: Path, *, exact: bool = True, seed: int = 0, **sizes: Any) -> Bundle:
    pad_bundle(source, path, seed=seed, exact=exact, **sizes)
    return Bundle.open(path)


def logits(bundle: Bundle, ids: NDArray[np.int32], device: str, threads: int = 2) -> F32:
    """Return the logits after each of ids [n], in passes of several widths: [n, tokens.size]."""
    target = open_target(bundle, device=device, limits=Limits(nodes=32, depth=4, positions=256), threads=threads)
    state, at = target.open(Limits(nodes=32, depth=4, positions=256)), 0
    parts: list[F32] = []
    while at < len(ids):
        part = ids[at : at + PASSES[len(parts) % len(PASSES)]]
        rows = np.arange(len(part), dtype=np.int32)
        (result,) = target.submit([(state, Pass(ids=part, positions=at + rows, logits=rows))]).result()
        state.commit(rows)
        parts.append(result.logits[:, : bundle.tokens.size])
        at += len(part)
    state.close()
    return np.concatenate(parts)


def random_ids(count: int = 24) -> NDArray[np.int32]:
    return np.random.default_rng(5).integers(0, 40, count).astype(np.int32)


def needs_kernels(device: str, kind: str) -> None:
    if device == "cpu" and not kind.startswith("int8") and load() is None:
        pytest.skip("no kernels: the portable graph quantizes activations in blocks that depend on the width")


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize("device", ["float_reference", "cpu"])
@pytest.mark.parametrize("kind", ["native", "planes2", "planes3", "int8", "int8_columns"])
@pytest.mark.parametrize("family", SMALL)
def test_logits_are_equal_to_the_last_bit(tmp_path: Path, family: str, kind: str, device: str) -> None:
    needs_kernels(device, kind)
    small = small_bundle(tmp_path / "s", kind, family)
    large = pad(small, tmp_path / "l", **LARGE[family])
    assert {key: large.config[key] for key in SIZES} == dict(LARGE[family])
    expected = logits(small, random_ids(), device)
    assert expected.std() > 0.01
    np.testing.assert_array_equal(logits(large, random_ids(), device), expected)


@pytest.mark.parametrize("kind", ["native", "int8"])
def test_a_tied_head_pads_as_an_embedding(tmp_path: Path, kind: str) -> None:
    small = small_bundle(tmp_path / "s", kind, tie_word_embeddings=True, head_dim=None)
    large = pad(small, tmp_path / "l", **LARGE["llama"])
    np.testing.assert_array_equal(
        logits(large, random_ids(), "float_reference"), logits(small, random_ids(), "float_reference")
    )


def test_a_ternary_embedding_is_still_a_feature(tmp_path: Path) -> None:
    source = maker.write_gguf(tmp_path / "m.gguf", maker.random_model(), "PQ2_0")
    options = QuantizeOptions(method="ternary")
    quantize(open_checkpoint(source), tmp_path / "s", options, vocab_limit=maker.VOCAB)
    sizes = dict(zip(SIZES, (2 * maker.HIDDEN, maker.INTER, 1, 2, maker.VOCAB), strict=True))
    large = pad(Bundle.open(tmp_path / "s"), tmp_path / "l", exact=False, **sizes)
    assert isinstance(large.schemes["model.embed_tokens.weight"], TernaryScheme)
    assert json.loads((large.path / "manifest.json").read_text())["requires"] == ["half_scales", "ternary_embedding"]


@pytest.mark.thorough
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ratio=st.sampled_from([1, 4, 16]),
    intermediate=st.integers(70, 200),
    layers=st.integers(2, 4),
    groups=st.integers(2, 5),
    vocab=st.integers(41, 90),
    seed=st.integers(0, 2**31),
)
def test_padding_accepted_as_exact_is_exact(
    tmp_path_factory: pytest.TempPathFactory,
    ratio: int,
    intermediate: int,
    layers: int,
    groups: int,
    vocab: int,
    seed: int,
) -> None:
    folder = tmp_path_factory.mktemp("padded")
    small = small_bundle(folder / "s", "planes2")
    sizes: dict[str, Any] = dict(zip(SIZES, (32 * ratio, intermediate, layers, 2 * groups, vocab), strict=True))
    large = pad(small, folder / "l", seed=seed, **sizes)
    np.testing.assert_array_equal(
        logits(large, random_ids(9), "float_reference"), logits(small, random_ids(9), "float_reference")
    )


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("llama", {"hidden_size": 31}, "hidden_size must be an integer of at least the model's 32, not 31"),
        ("llama", {"num_hidden_layers": 1}, "num_hidden_layers must be an integer of at least the model's 2, not 1"),
        ("llama", {"intermediate_size": 69}, "intermediate_size must be .* the model's 70, not 69"),
        ("llama", {"vocab_size": 40}, "vocab_size must be an integer of at least the model's 41, not 40"),
        ("llama", {"vocab_size": 41.0}, r"vocab_size must be an integer .* not 41\.0"),
        ("llama", {"vocab_size": True}, "vocab_size must be an integer .* not True"),
        ("llama", {"vocab_size": 1 << 30}, "cannot be padded to these sizes: configuration: vocab_size must be"),
        ("llama", {"num_attention_heads": 5}, "must be a multiple of 2, the number of .* not 5"),
        ("llama", {"hidden_size": 64}, r"attn_norm would take the mean of 64 .* instead of 32, .* 128, 512"),
        ("llama", {"hidden_size": 96}, r"attn_norm would take the mean of 96 channels"),
        ("bitnet", {"num_attention_heads": 8}, "8 heads of 8 are not hidden_size 128, as the sub-norm needs"),
        (
            "bitnet",
            {"intermediate_size": 255},
            r"layers\.0\.ffn_sub_norm would take the mean of 255 channels instead of 64",
        ),
        (
            "bitnet",
            {"intermediate_size": 64},
            r"norms that grow differently: layers\.0\.attn_norm \(32 to 128\), .*ffn_sub_norm \(64 to 64\)",
        ),
    ],
)
def test_impossible_sizes_are_refused(tmp_path: Path, family: str, changes: dict[str, Any], message: str) -> None:
    small = small_bundle(tmp_path / "s", "native", family)
    with pytest.raises(UsageError, match=message):
        pad(small, tmp_path / "l", **{**LARGE[family], **changes})
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_widths_whose_sums_change_order_are_refused(tmp_path: Path) -> None:
    small = small_bundle(tmp_path / "s", hidden_size=36)
    with pytest.raises(UsageError, match=r"attn_norm has 36 channels, which is not a multiple of 32"):
        pad(small, tmp_path / "l", **{**LARGE["llama"], "hidden_size": 144})
    # The stream may keep its width, because no sum grows then.
    large = pad(small, tmp_path / "l", **{**LARGE["llama"], "hidden_size": 36})
    np.testing.assert_array_equal(
        logits(large, random_ids(), "float_reference"), logits(small, random_ids(), "float_reference")
    )


def test_float_matrices_are_refused(tmp_path: Path) -> None:
    small = small_bundle(tmp_path / "s", "half")
    with pytest.raises(UsageError, match=r"q_proj\.weight \(and 14 more\) is a float matrix.*exact=False"):
        pad(small, tmp_path / "l", **LARGE["llama"])


@pytest.mark.parametrize(("family", "hidden"), [("llama", 96), ("bitnet", 64)])
def test_inexact_padding_on_request_is_close_and_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, family: str, hidden: int
) -> None:
    small = small_bundle(tmp_path / "s", "float", family)
    sizes = {**LARGE[family], "hidden_size": hidden, "num_attention_heads": 8, "intermediate_size": hidden * 2}
    with caplog.at_level(logging.WARNING):
        large = pad(small, tmp_path / "l", exact=False, **sizes)
    assert "padded logits differ in last bits: layers.0.attn_norm would take the mean" in caplog.text
    assert large.quantization["exact"] is False
    expected, actual = (logits(bundle, random_ids(), "float_reference") for bundle in (small, large))
    assert not np.array_equal(actual, expected)  # the refusal without exact=False is necessary
    np.testing.assert_allclose(actual, expected, atol=1e-4 * np.abs(expected).max())


def test_the_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    small = small_bundle(tmp_path / "s", "planes2")
    bundles = [pad(small, tmp_path / f"{at}", seed=seed, **LARGE["llama"]) for at, seed in enumerate((0, 0, 1))]
    assert bundles[0].sha256 == bundles[1].sha256 != bundles[2].sha256
    assert bundles[0].quantization["padded_from"] == small.sha256[:12]
    assert (bundles[0].tokens, bundles[0].tokenizer_hash) == (small.tokens, small.tokenizer_hash)
    assert bundles[0].chat_template == small.chat_template


def test_padding_is_work_for_the_executor(tmp_path: Path) -> None:
    """Check that padding is random wherever it has no effect: only what would change the result is zero."""
    small = small_bundle(tmp_path / "s")
    large = pad(small, tmp_path / "l", **LARGE["llama"])
    for name, tensor in large.tensors.items():
        if not isinstance(tensor.scheme, TernaryScheme):
            continue
        weight = large.weight(name)
        assert isinstance(weight, TernaryWeight)
        layer = int(name.split(".")[2]) if "layers" in name else None
        if layer is None:
            assert np.count_nonzero(weight.trits[:, 41:]) > 0.6 * weight.trits[:, 41:].size
        elif layer >= 2:
            assert np.count_nonzero(weight.trits) > 0.6 * weight.trits.size
            assert (weight.scale == 0).all() == (name.split(".")[-2] in ("o_proj", "down_proj"))
        else:
            outputs, inputs = small.tensors[name].shape
            beside = weight.trits[:, :outputs, inputs:]
            assert np.count_nonzero(beside) > 0.6 * beside.size
            assert not weight.trits[:, outputs:].any()


def test_gains_of_a_narrow_type_keep_their_bits(tmp_path: Path) -> None:
    """Check gains whose quarter is below the range of float16: they are stored in a wider type."""
    write_bundle(tmp_path / "s", changes=SMALL["llama"])
    source = Bundle.open(tmp_path / "s")
    tiny_gain = np.full(32, 1.0009765625 * 2.0**-14, np.float16)
    with BundleWriter.create(tmp_path / "h") as writer:
        for name, tensor in source.tensors.items():
            parts = {part: source.array(name, part) for part in tensor.offsets}
            if name.endswith("norm.weight"):
                narrow = tiny_gain if name == "model.norm.weight" else parts["values"].astype(np.float16)
                writer.add(name, FloatScheme(dtype="float16"), tensor.shape, {"values": narrow})
            else:
                writer.add(name, tensor.scheme, tensor.shape, parts)
        writer.finish(
            config=source.config,
            quantization={},
            tokens=source.tokens,
            tokenizer_json=source.tokenizer_file.read_text(),
            chat_template=None,
        )
    small = Bundle.open(tmp_path / "h")
    large = pad(small, tmp_path / "l", **LARGE["llama"])
    kinds = {name: large.array(name, "values").dtype for name in large.tensors if name.endswith("norm.weight")}
    assert kinds["model.norm.weight"] == np.float32
    assert kinds["model.layers.0.input_layernorm.weight"] == np.float16
    np.testing.assert_array_equal(
        logits(large, random_ids(), "float_reference"), logits(small, random_ids(), "float_reference")
    )


def test_a_source_without_a_tensor_is_refused(tmp_path: Path) -> None:
    small = small_bundle(tmp_path / "s")
    tensors = {name: tensor for name, tensor in small.tensors.items() if name != "model.norm.weight"}
    with pytest.raises(BundleError, match=r"has no tensor model\.norm\.weight"):
        pad(replace(small, manifest=replace(small.manifest, tensors=tensors)), tmp_path / "l", **LARGE["llama"])


@pytest.mark.thorough
def test_memory_stays_near_the_largest_tensor(tmp_path: Path) -> None:
    small = small_bundle(tmp_path / "s", intermediate_size=128)
    sizes: dict[str, Any] = dict(zip(SIZES, (512, 2048, 40, 16, 3000), strict=True))
    tracemalloc.start()
    pad_bundle(small, tmp_path / "l", seed=0, **sizes)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    large = Bundle.open(tmp_path / "l")
    largest = max(tensor.count for tensor in large.tensors.values())  # a trit is a byte before it is packed
    assert peak < 6 * largest < sum(tensor.count for tensor in large.tensors.values()) / 5


def texts(bundle: Path, prompts: list[str], n_predict: int) -> list[list[int]]:
    with Session.open(bundle, ctx_size=512, threads=2) as session:
        return [
            session.generate(session.encode(prompt), n_predict=n_predict, sampling=SamplingConfig(temperature=0)).tokens
            for prompt in prompts
        ]


@pytest.fixture(scope="module")
def demo_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return Bundle.open(demo.bundle_path())


@pytest.mark.thorough
def test_the_embedded_model_writes_the_same_text_in_a_wider_one(tmp_path: Path, demo_bundle: Bundle) -> None:
    needs_kernels("cpu", "native")
    sizes: dict[str, Any] = dict(zip(SIZES, (1536, 1100, 6, 7, 2500), strict=True))
    large = pad(demo_bundle, tmp_path / "l", **sizes)
    story = demo.HELD_OUT.read_text("utf-8").split("\n\n")[0]
    ids = Tokenizer.load(demo_bundle.tokenizer_file).encode(story)[:120]
    for threads in (1, 2):
        expected = logits(demo_bundle, ids, "cpu", threads)
        np.testing.assert_array_equal(logits(large, ids, "cpu", threads), expected)
    prompts = ["Once upon a time", "Mia was"]
    assert texts(large.path, prompts, 40) == texts(demo_bundle.path, prompts, 40)


@pytest.mark.thorough
def test_rows_past_the_vocabulary_are_large_and_masked(tmp_path: Path, demo_bundle: Bundle) -> None:
    """Check that a run which forgets to mask would write nonsense."""
    large = pad(demo_bundle, tmp_path / "l", **{**{key: demo_bundle.config[key] for key in SIZES}, "vocab_size": 4096})
    head = large.weight("lm_head.weight")
    assert isinstance(head, Int8Weight)
    assert head.scale[2048:].min() > 0
    limits = Limits(nodes=64, depth=0, positions=64)
    target = open_target(large, device="float_reference", limits=limits)
    ids = Tokenizer.load(large.tokenizer_file).encode(demo.HELD_OUT.read_text("utf-8"))[:64]
    rows = np.arange(len(ids), dtype=np.int32)
    (result,) = target.submit([(target.open(limits), Pass(ids=ids, positions=rows, logits=rows))]).result()
    assert result.logits.shape == (64, 4096)
    assert (result.logits.argmax(axis=1) >= 2048).mean() > 0.05
    for temperature in (0.0, 1.0):
        config = SamplingConfig(temperature=temperature, top_k=0, top_p=1, min_p=0)
        for row in result.logits:
            shares = Sampler(config, large.tokens.size).distribution(row, ids)
            assert not shares[2048:].any()
            assert shares.sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.nightly
def test_the_embedded_model_writes_the_same_text_in_the_shape_of_bitnet_073b(
    tmp_path: Path, demo_bundle: Bundle
) -> None:
    needs_kernels("cpu", "native")
    large = pad(demo_bundle, tmp_path / "l", **{key: SHAPES["bitnet-0.73b"][key] for key in SIZES})
    assert sum(tensor.count for tensor in large.tensors.values()) > 7e8
    stories = demo.HELD_OUT.read_text("utf-8").split("\n\n")
    ids = Tokenizer.load(demo_bundle.tokenizer_file).encode(stories[1])[:200]
    np.testing.assert_array_equal(logits(large, ids, "cpu"), logits(demo_bundle, ids, "cpu"))
    prompts = ["Once upon a time", "Q: What do bees make? A:", *(" ".join(story.split()[:6]) for story in stories[:4])]
    assert texts(large.path, prompts, 100) == texts(demo_bundle.path, prompts, 100)
