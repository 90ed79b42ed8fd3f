"""Compare perplexity with a slow computation that spells it out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.bundle.bundle import Bundle
from edgedec.errors import BundleError, DeviceError
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.runtime.measure.perplexity import Score, perplexity
from edgedec.runtime.model_graph import bundle_graph
from edgedec.runtime.protocols import I32, Limits, Pass, PassResult, State
from edgedec.runtime.targets import open_target
from edgedec.runtime.targets._results import FinishedTicket

VOCAB, TOKENIZER_SIZE = 40, 37  # the last three ids are padding
CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path: Path = tmp_path_factory.mktemp("evaluate") / "bundle"
    write_random_bundle(path, CONFIG, "int8")
    return Bundle.open(path)


def slow_nats(bundle: Bundle, windows: Sequence[I32]) -> float:
    """Score one token at a time, each from an empty cache, with the softmax spelled out."""
    model = ReferenceModel(bundle_graph(bundle), bundle.weight)
    nats = 0.0
    for window in windows:
        for at in range(1, len(window)):
            logits, _ = model.forward(window[:at], model.new_cache())
            row = [float(logit) for logit in logits[-1][:TOKENIZER_SIZE]]
            probability = math.exp(row[window[at]]) / sum(math.exp(logit) for logit in row)
            nats -= math.log(probability)
    return nats


windows_of_ids = st.lists(
    st.lists(st.integers(0, TOKENIZER_SIZE - 1), min_size=2, max_size=12), min_size=1, max_size=3
).map(lambda windows: [np.array(window, np.int32) for window in windows])


@given(windows=windows_of_ids, nodes=st.integers(1, 8))
@settings(max_examples=12)
def test_perplexity_equals_the_slow_computation(bundle: Bundle, windows: list[I32], nodes: int) -> None:
    limits = Limits(nodes=nodes, depth=0, positions=16)
    target = open_target(bundle, device="float_reference", limits=limits)
    score = perplexity(target, limits, windows, vocab_limit=TOKENIZER_SIZE)
    assert score.tokens == sum(len(window) - 1 for window in windows)
    assert score.nats == pytest.approx(slow_nats(bundle, windows), rel=1e-5)
    assert score.perplexity == pytest.approx(math.exp(score.nats / score.tokens))


def test_cpu_agrees_with_the_reference(bundle: Bundle) -> None:
    rng = np.random.default_rng(1)
    windows = [rng.integers(0, TOKENIZER_SIZE, size).astype(np.int32) for size in (2, 33, 64)]
    limits = Limits(nodes=16, depth=0, positions=64)
    scores = [
        perplexity(open_target(bundle, device=device, limits=limits), limits, windows, vocab_limit=TOKENIZER_SIZE)
        for device in ("cpu", "float_reference")
    ]
    assert scores[0].nats == pytest.approx(scores[1].nats, rel=1e-3)


def test_progress_counts_tokens_to_the_end(bundle: Bundle) -> None:
    limits = Limits(nodes=4, depth=0, positions=16)
    target = open_target(bundle, device="float_reference", limits=limits)
    reports: list[tuple[int, int]] = []
    windows = [np.array([1, 2, 3], np.int32), np.array([4, 5], np.int32)]
    perplexity(
        target, limits, windows, vocab_limit=5 + 1, progress=lambda label, done, total: reports.append((done, total))
    )
    assert reports == [(2, 3), (3, 3)]


class FixedTarget:
    """Answer always with the same row; the target is its own state."""

    def __init__(self, row: Sequence[float]) -> None:
        self.row = np.array(row, np.float32)
        self.length = 0

    def open(self, limits: Limits) -> FixedTarget:
        return self

    def submit(self, work: Sequence[tuple[State, Pass]]) -> FinishedTicket:
        requested = work[0][1].logits
        rows = np.tile(self.row, (1 if requested is None else len(requested), 1))
        return FinishedTicket([PassResult(logits=rows, top=None, taps={}, seconds=0.0)])

    def commit(self, nodes: I32) -> None: ...
    def truncate(self, length: int) -> int:
        return length

    def close(self) -> None: ...


def score_fixed(row: Sequence[float], window: Sequence[int], vocab_limit: int) -> Score:
    limits = Limits(nodes=2, depth=0, positions=8)
    target = FixedTarget(row)
    return perplexity(target, limits, [np.array(window, np.int32)], vocab_limit=vocab_limit)  # type: ignore[arg-type]


def test_padding_of_the_vocabulary_gets_no_probability() -> None:
    assert score_fixed([0, 0, 0, 0, 50], [0, 1, 2, 3], vocab_limit=4).perplexity == pytest.approx(4)


def test_a_bad_model_has_a_finite_perplexity() -> None:
    score = score_fixed([3e4, 0, -3e4], [0, 2, 2], vocab_limit=3)
    assert score.nats == pytest.approx(12e4)
    assert score.perplexity == pytest.approx(math.exp(700))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_an_error(value: float) -> None:
    with pytest.raises(DeviceError, match="logits are not finite"):
        score_fixed([0, value, 0], [0, 2], vocab_limit=3)


def test_an_id_without_a_logit_is_an_error() -> None:
    with pytest.raises(BundleError, match=r"gives token id 3, the model's tokens end at 2"):
        score_fixed([0, 0, 0, 0], [0, 3], vocab_limit=3)
