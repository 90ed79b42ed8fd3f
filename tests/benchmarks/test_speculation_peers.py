"""Test the peers of benchmarks/speculation/drafters.py: the same weights in their formats, the same drafting protocol, their
figures.
"""

from __future__ import annotations

import importlib
import importlib.util
import struct
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.errors import DeviceError, ToolError, UnsupportedError, UsageError
from edgedec.families import build_graph
from edgedec.host.ort import onnxruntime as ort
from edgedec.host.paths import cache_folder
from edgedec.quantize.synthetic.padded_bundle import SIZES, pad_bundle
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.runtime.kernels.recipe import find_compiler
from edgedec.schemes import FloatWeight
from tests.support.make_tiny import write_bundle

# TQ2_0 requires rows of 256; the widths grow by a power of 4, because padding must not lose a bit.
SMALL: Mapping[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "max_position_embeddings": 64,
    "rope_theta": 5000.0,
}
PADDED: Mapping[str, Any] = dict(zip(SIZES, (256, 256, 3, 8, 60), strict=True))
F32 = NDArray[np.float32]


@pytest.fixture(scope="module")
def module() -> Callable[[str], ModuleType]:
    """Return modules of the benchmarks by name."""
    return lambda name: importlib.import_module(f"benchmarks.{name}")


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("models")
    write_bundle(folder / "small", "native", changes=SMALL)
    pad_bundle(Bundle.open(folder / "small"), folder / "padded", **PADDED, seed=0)
    return Bundle.open(folder / "padded")


class Gguf:
    """Read a GGUF file, independently, from the format's description: metadata, and tensors in float32."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 4
        assert data[:4] == b"GGUF"
        assert self.take("I") == 3
        tensors, entries = self.take("Q"), self.take("Q")
        self.metadata = {self.text(): self.value(self.take("I")) for _ in range(entries)}
        infos = [self.info() for _ in range(tensors)]
        start = -(-self.at // 32) * 32
        self.kinds = {name: kind for name, _, kind, _ in infos}
        self.tensors = {name: self.array(start + offset, shape, kind) for name, shape, kind, offset in infos}

    def take(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self.data, self.at)
        self.at += struct.calcsize(f"<{code}")
        return value

    def text(self) -> str:
        length = self.take("Q")
        self.at += length
        return self.data[self.at - length : self.at].decode()

    def value(self, kind: int) -> Any:
        if kind == 9:
            element, count = self.take("I"), self.take("Q")
            return [self.value(element) for _ in range(count)]
        return self.text() if kind == 8 else self.take({4: "I", 5: "i", 6: "f", 7: "?"}[kind])

    def info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.text()
        shape = tuple(self.take("Q") for _ in range(self.take("I")))
        return name, shape[::-1], self.take("I"), self.take("Q")

    def array(self, at: int, shape: tuple[int, ...], kind: int) -> F32:
        assert at % 32 == 0
        count = int(np.prod(shape))
        if kind == 0:
            return np.frombuffer(self.data, np.float32, count, at).reshape(shape)
        block, code = {8: (32, "e32b"), 35: (256, "64Be")}[kind]
        values: list[float] = []
        for number in range(count // block):
            stored = struct.unpack_from(f"<{code}", self.data, at + number * struct.calcsize(f"<{code}"))
            if kind == 8:
                values += [stored[0] * power for power in stored[1:]]
            else:  # column c: byte 32 (c // 128) + c % 32, bits 2 ((c // 32) % 4) and the next
                codes = [stored[32 * (c // 128) + c % 32] >> 2 * (c // 32 % 4) & 3 for c in range(256)]
                values += [stored[64] * (power - 1) for power in codes]
        return np.array(values, np.float32).reshape(shape)


def halves(rows: F32, heads: int) -> F32:
    """Reorder llama.cpp's rows of q or k, whose neighbours rotate together, into halves of a head."""
    width = len(rows) // heads
    order = [
        head * width + 2 * (at % (width // 2)) + at // (width // 2) for head in range(heads) for at in range(width)
    ]
    return rows[order]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["padded", "int8", "tied"])
def test_a_gguf_holds_the_weights_of_the_bundle(
    module: Callable[[str], ModuleType], padded: Bundle, tmp_path: Path, kind: str
) -> None:
    if kind != "padded":
        write_bundle(tmp_path / "int8", "int8", changes={**SMALL, "tie_word_embeddings": kind == "tied"})
    bundle = padded if kind == "padded" else Bundle.open(tmp_path / "int8")
    module("peers.gguf_models").write_llama(bundle, tmp_path / "model.gguf")
    gguf = Gguf((tmp_path / "model.gguf").read_bytes())
    assert len(gguf.tensors) == len(bundle.tensors)
    heads = {"q_proj": bundle.config["num_attention_heads"], "k_proj": bundle.config["num_key_value_heads"]}
    for name in bundle.tensors:
        ours, theirs = bundle.weight(name).dense(), gguf.tensors[module("peers.gguf_models").tensor_name(name)]
        part = name.split(".")[-2]
        if part in heads:
            theirs = halves(theirs, heads[part])
        np.testing.assert_allclose(theirs, ours, rtol=2**-11, err_msg=name)  # scales are float16


@pytest.mark.thorough
def test_the_kinds_of_a_padded_model_are_the_measured_ones(
    module: Callable[[str], ModuleType], padded: Bundle, tmp_path: Path
) -> None:
    module("peers.gguf_models").write_llama(padded, tmp_path / "model.gguf")
    kinds = Gguf((tmp_path / "model.gguf").read_bytes()).kinds
    matrices = {kind for name, kind in kinds.items() if name.startswith("blk.") and "norm" not in name}
    assert matrices == {35}
    assert kinds["blk.2.ffn_norm.weight"] == 0


@pytest.mark.thorough
def test_the_gguf_describes_the_model(module: Callable[[str], ModuleType], padded: Bundle, tmp_path: Path) -> None:
    module("peers.gguf_models").write_llama(padded, tmp_path / "model.gguf", vocab=70)
    metadata = Gguf((tmp_path / "model.gguf").read_bytes()).metadata
    assert metadata["general.architecture"] == "llama"
    sizes = {"embedding_length": 256, "block_count": 3, "feed_forward_length": 256, "context_length": 64}
    assert {key: metadata[f"llama.{key}"] for key in sizes} == sizes
    attention = {"head_count": 8, "head_count_kv": 4, "key_length": 32, "value_length": 32}
    assert {key: metadata[f"llama.attention.{key}"] for key in attention} == attention
    assert metadata["llama.rope.dimension_count"] == 32
    assert metadata["llama.rope.freq_base"] == 5000.0
    assert metadata["llama.attention.layer_norm_rms_epsilon"] == np.float32(1e-5 / 4)  # padding divides it
    assert len(set(metadata["tokenizer.ggml.tokens"])) == 70 == metadata["llama.vocab_size"]
    assert len(metadata["tokenizer.ggml.scores"]) == len(metadata["tokenizer.ggml.token_type"]) == 70
    assert (metadata["tokenizer.ggml.bos_token_id"], metadata["tokenizer.ggml.eos_token_id"]) == (1, 2)


@pytest.mark.thorough
def test_a_larger_vocabulary_is_padded_with_zeros(
    module: Callable[[str], ModuleType], padded: Bundle, tmp_path: Path
) -> None:
    module("peers.gguf_models").write_llama(padded, tmp_path / "model.gguf", vocab=70)
    tensors = Gguf((tmp_path / "model.gguf").read_bytes()).tensors
    for name in ("token_embd.weight", "output.weight"):
        assert tensors[name].shape == (70, 256)
        assert not tensors[name][60:].any()
        assert tensors[name][:60].any()


@pytest.mark.thorough
def test_the_gguf_package_reads_the_same_tensors(
    module: Callable[[str], ModuleType], padded: Bundle, tmp_path: Path
) -> None:
    """Check this where it is installed, because the reader above has the author of the writer."""
    gguf = pytest.importorskip("gguf")
    module("peers.gguf_models").write_llama(padded, tmp_path / "model.gguf")
    ours = Gguf((tmp_path / "model.gguf").read_bytes()).tensors
    for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors:
        read = gguf.dequantize(np.asarray(tensor.data), tensor.tensor_type)
        np.testing.assert_array_equal(read.reshape(ours[tensor.name].shape), ours[tensor.name], err_msg=tensor.name)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("native", {}, "rows of 64 are no multiple of GGML's block of 256"),
        ("planes2", {"hidden_size": 256, "intermediate_size": 256}, "one plane of trits"),
        ("int8", {"attention_bias": True}, "attention_bias has no counterpart"),
        ("int8", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling has no counterpart"),
        ("int8", {"model_type": "bitnet", "head_dim": 32}, "known for Llama, not bitnet"),
    ],
)
def test_what_a_gguf_cannot_hold_is_refused(
    module: Callable[[str], ModuleType], tmp_path: Path, kind: str, changes: Mapping[str, Any], message: str
) -> None:
    write_bundle(tmp_path / "model", kind, changes={**SMALL, **changes})
    with pytest.raises(UnsupportedError, match=message):
        module("peers.gguf_models").write_llama(Bundle.open(tmp_path / "model"), tmp_path / "model.gguf")
    assert not (tmp_path / "model.gguf").exists()


def test_a_smaller_vocabulary_is_refused(module: Callable[[str], ModuleType], padded: Bundle, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least the model's 60, not 59"):
        module("peers.gguf_models").write_llama(padded, tmp_path / "model.gguf", vocab=59)


def onnx_logits(session: ort.InferenceSession, ids: NDArray[np.int32], passes: tuple[int, ...], layers: int) -> F32:
    """Return the logits of passes over a growing past: [n, tokens.size]."""
    names = [f"{at}.{part}" for at in range(layers) for part in ("key", "value")]
    shapes = {tensor_input.name: tensor_input.shape for tensor_input in session.get_inputs()}
    cache = [
        np.zeros((1, shapes[f"past_key_values.{n}"][1], 0, shapes[f"past_key_values.{n}"][3]), np.float32)
        for n in names
    ]
    parts, at = [], 0
    for rows in passes:
        feeds = {f"past_key_values.{name}": past for name, past in zip(names, cache, strict=True)}
        feeds["input_ids"] = ids[None, at : at + rows].astype(np.int64)
        feeds["attention_mask"] = np.ones((1, at + rows), np.int64)
        logits, *cache = session.run(["logits", *(f"present.{name}" for name in names)], feeds)
        parts.append(logits[0])
        at += rows
    return np.concatenate(parts)


@pytest.mark.parametrize("kind", ["padded", "int8", "int8_columns", "tied"])
def test_the_graph_for_genai_computes_the_model(
    module: Callable[[str], ModuleType], padded: Bundle, tmp_path: Path, kind: str
) -> None:
    """Allow for its activations, which are int8 by blocks."""
    if kind != "padded":
        scheme, tied = ("int8", True) if kind == "tied" else (kind, False)
        write_bundle(tmp_path / "int8", scheme, changes={**SMALL, "tie_word_embeddings": tied})
    bundle = padded if kind == "padded" else Bundle.open(tmp_path / "int8")
    module("peers.genai_model").write_model(bundle, tmp_path / "model")
    session = ort.InferenceSession(str(tmp_path / "model" / "model.onnx"))
    ids = np.random.default_rng(1).integers(0, 40, 24).astype(np.int32)
    model = ReferenceModel(build_graph(bundle.config), lambda name: FloatWeight(values=bundle.weight(name).dense()))
    expected = model.forward(ids, model.new_cache())[0][:, : bundle.tokens.size]
    actual = onnx_logits(session, ids, (9, 1, 1, 5, 8), bundle.config["num_hidden_layers"])
    assert actual.shape == expected.shape == (24, 40)  # ids past the tokenizer's are cut
    cosines = (actual * expected).sum(1) / np.linalg.norm(actual, axis=1) / np.linalg.norm(expected, axis=1)
    assert cosines.min() > 0.99
    assert np.median(cosines) > 0.999


def fake(module: Callable[[str], ModuleType], answers: str) -> Any:
    """Return a process of a peer that prints these lines for any request."""
    script = f"import sys\nfor line in {answers!r}.split('|'):\n print(line, flush=True)\n sys.stdin.readline()"
    return module("peers.text_writer").PeerWriter("a peer", [sys.executable, "-c", script])


def test_a_writer_reads_the_answers_of_the_process(module: Callable[[str], ModuleType]) -> None:
    with fake(module, "12\ttiny|3|2.0 0.5 3 8 5 7 8 9 10 11 12 13 14") as writer:
        assert writer.about == ["12", "tiny"]
        writer.read([1, 2, 3, 4])
        text = writer.write("none", 8)
    assert text.tokens == (7, 8, 9, 10, 11, 12, 13, 14)
    assert (text.rounds, text.drafted, text.accepted, text.tok_s) == (3, 8, 5, 4.0)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("error no such drafter", "a peer: no such drafter"),
        ("1.0 0.0 1 0", "is not a text"),
        ("hello", "is not a text"),
        ("1.0 0.0 1 0 0", "wrote 0 tokens"),
        ("1.0 0.0 1 0 0 1 2 3", "wrote 3 tokens in 1.0 s instead of up to 2"),
        ("0 0 1 0 0 1 2", "wrote 2 tokens in 0 s"),
        ("nan 0 1 0 0 1 2", "wrote 2 tokens in nan s"),
        ("", "its process has ended"),
    ],
)
def test_a_strange_answer_is_an_error(module: Callable[[str], ModuleType], answer: str, message: str) -> None:
    with fake(module, f"hello|{answer}") as writer, pytest.raises(DeviceError, match=message):
        writer.write("none", 2)


def test_a_process_that_does_not_start_is_an_error(module: Callable[[str], ModuleType]) -> None:
    with pytest.raises(DeviceError, match="a peer: the model cannot be loaded"):
        fake(module, "error the model cannot be loaded")


def text(
    module: Callable[[str], ModuleType], tokens: tuple[int, ...], seconds: float, rounds: int, drafted: int
) -> Any:
    return module("peers.text_writer").PeerText(
        tokens=tokens,
        seconds=seconds,
        draft_seconds=seconds / 10,
        rounds=rounds,
        drafted=drafted,
        accepted=len(tokens) - rounds,
    )


def test_figures_are_medians_over_prompts_relative_to_the_plain_texts(module: Callable[[str], ModuleType]) -> None:
    peers = module("peers.speculation")
    text_ids, other_ids = (1, 2, 3, 4), (1, 2, 3, 5)
    takes = [
        peers.PeerTake(
            kind="story",
            expected=text_ids,
            plain=(text(module, mine, 1.0, 4, 0), text(module, mine, 3.0, 4, 0)),
            drafters={"ngram": text(module, text_ids, seconds, 2, drafted), "idle": text(module, mine, 2.0, 4, 0)},
        )
        for mine, seconds, drafted in ((text_ids, 1.0, 3), (other_ids, 0.5, 5), (text_ids, 4.0, 2))
    ]
    summary = peers.summarize_peer(takes)
    story = summary["kinds"]["story"]
    assert story["plain_tok_s"] == 2.0
    assert story["best"] == "ngram"
    assert story["drafters"]["ngram"]["tok_s"] == 4.0
    assert story["drafters"]["ngram"]["speedup"] == 2.0
    assert story["drafters"]["ngram"]["acceptance"] == 0.6
    assert story["drafters"]["ngram"]["tokens_per_round"] == 2.0
    assert story["drafters"]["idle"]["acceptance"] is None
    assert summary["same_text"] == pytest.approx(2 / 3)
    assert summary["same_as_plain"] == pytest.approx(5 / 6)


class OnePeer:
    """Count the calls."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make, self.asked = make, [""] * 0

    def read(self, ids: list[int]) -> None:
        self.asked.append(f"read {len(ids)}")

    def write(self, how: str, tokens: int) -> Any:
        self.asked.append(f"write {how} {tokens}")
        return self.make((5,) * tokens, 2.0 if how == "off" else 1.0, tokens, 0)

    def __enter__(self) -> OnePeer:
        return self

    def __exit__(self, *error: object) -> None:
        self.asked.append("closed")


def test_peers_take_turns_and_a_failing_one_does_not_end_the_others(
    module: Callable[[str], ModuleType],
    padded: Bundle,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    peers = module("peers.speculation")
    writer = OnePeer(lambda *figures: text(module, *figures))
    details = {"version": "1", "model": "tiny", "weight_bytes": 10}

    def broken(*models: Bundle, **settings: Any) -> Any:
        raise ToolError("there is no C++ compiler")

    def works(*models: Bundle, **settings: Any) -> Any:
        assert settings["positions"] == 64  # the context of the model
        return module("peers.text_writer").Peer(writer=writer, plain="off", drafters={"ngram": "on"}, details=details)

    monkeypatch.setattr(peers, "_OPENERS", {"first": broken, "second": works})
    monkeypatch.setattr(peers, "padded_bundle", lambda source, progress: padded.path)
    task = module("speculation.padded_model").PromptTask(
        kind="story", source="here", ids=np.arange(6, dtype=np.int32), expected=(5, 5, 5)
    )
    result = peers.run_peers([task, task], tokens=3, threads=1, draft_max=4)
    assert result["first"] == {"not run": "there is no C++ compiler"}
    assert result["second"]["kinds"]["story"]["drafters"]["ngram"]["speedup"] == 2.0
    assert result["second"]["same_text"] == 1.0
    assert writer.asked == ["read 6", "write off 3", "write on 3", "write off 3"] * 2 + ["closed"]
    peers.print_peers(result)
    output = capsys.readouterr().out
    assert "first was not run: there is no C++ compiler" in output
    assert any(line.split()[:3] == ["ngram", "3.0", "2.00"] for line in output.splitlines())


def llama_is_built() -> bool:
    return find_compiler() is not None and any((cache_folder() / "peers").glob("llama.cpp-*/build/finished"))


@pytest.mark.nightly
@pytest.mark.skipif(not llama_is_built(), reason="llama.cpp was not built by a benchmark yet")
def test_llama_writes_the_draft_s_own_text_with_every_drafter(module: Callable[[str], ModuleType]) -> None:
    """Let the draft speculate for itself, so that its guesses are right unless rounding differs with the width."""
    draft = Bundle.open(demo.bundle_path("demo-draft"))
    peer = module("peers.llama_speculation").open_llama(draft, draft, threads=1, draft_max=4, positions=256)
    with peer.writer as writer:
        writer.read([0, *range(300, 320)])
        plain = writer.write(peer.plain, 40)
        texts = {name: writer.write(how, 40) for name, how in peer.drafters.items()}
        with pytest.raises(DeviceError, match="unknown speculative type"):
            writer.write("nonsense 0 0", 4)
    assert {name: peer_text.tokens for name, peer_text in texts.items()} == dict.fromkeys(texts, plain.tokens)
    guessed = texts["draft model, 4"]
    assert guessed.accepted == guessed.drafted > 0
    assert guessed.rounds == len(guessed.tokens) - guessed.accepted < len(guessed.tokens) / 3


@pytest.mark.nightly
@pytest.mark.skipif(
    not list((cache_folder() / "peers").glob("onnxruntime-genai-*/finished")),
    reason="onnxruntime-genai was not installed by a benchmark yet",
)
def test_genai_writes_the_draft_s_own_text_with_every_drafter(module: Callable[[str], ModuleType]) -> None:
    draft = Bundle.open(demo.bundle_path("demo-draft"))
    peer = module("peers.genai_speculation").open_genai(draft, draft, threads=1, draft_max=4, positions=256)
    with peer.writer as writer:
        writer.read([0, *range(300, 320)])
        plain = writer.write(peer.plain, 40)
        texts = {name: writer.write(how, 40) for name, how in peer.drafters.items()}
        with pytest.raises(DeviceError, match=r"onnxruntime-genai: .*max_draft_tokens"):
            writer.write("plain max_draft_tokens=99", 4)
    assert {name: peer_text.tokens for name, peer_text in texts.items()} == dict.fromkeys(texts, plain.tokens)
    guessed = texts["draft model, 4"]
    assert guessed.accepted > 0.9 * guessed.drafted > 0
