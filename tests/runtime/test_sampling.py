from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgedec.errors import DeviceError, UsageError
from edgedec.runtime.protocols import F32, I32, Sparse
from edgedec.runtime.sampling import portable_math
from edgedec.runtime.sampling.position_random import PositionRandom
from edgedec.runtime.sampling.sampling import Sampler, SamplingConfig

KEEP_ALL: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def distribution(logits: object, history: object = (), limit: int = 1000, **settings: Any) -> F32:
    sampler = Sampler(SamplingConfig(**settings), limit)
    return sampler.distribution(np.array(logits, np.float32), np.array(history, np.int32))


def slow(logits: F32, history: I32, limit: int, config: SamplingConfig) -> dict[int, float] | None:
    """Compute llama.cpp's chain step by step on a sorted list, or return None if rounding may decide about a token."""
    remaining = {i: float(x) for i, x in enumerate(logits[:limit])}
    recent = history if config.repeat_last_n < 0 else history[::-1][: config.repeat_last_n]
    for token, bias in config.logit_bias:
        if token in remaining:
            remaining[token] += bias
    for i in {int(token) for token in recent if 0 <= token < len(remaining)}:
        factor = config.repeat_penalty if remaining[i] <= 0 else 1 / config.repeat_penalty
        remaining[i] = remaining[i] * factor - config.presence_penalty
        remaining[i] -= sum(int(token) == i for token in recent) * config.frequency_penalty
    remaining = {i: float(np.float32(x)) for i, x in remaining.items()}
    ranked = sorted(remaining.items(), key=lambda pair: (-pair[1], pair[0]))
    if config.temperature == 0:
        return {ranked[0][0]: 1.0}
    if config.top_k:
        ranked = ranked[: config.top_k]
    if config.top_p < 1:
        probs = softmax([x for _, x in ranked])
        for count in range(1, len(ranked) + 1):
            reached = math.fsum(probs[:count])
            if abs(reached - config.top_p) < 1e-6:
                return None
            if reached >= config.top_p:
                break
        ranked = ranked[:count]
    if config.min_p > 0:
        ratios = [math.exp(x - ranked[0][1]) for _, x in ranked]
        if any(abs(ratio - config.min_p) < 1e-6 for ratio in ratios[1:]):
            return None
        ranked = [pair for pair, ratio in zip(ranked, ratios, strict=True) if ratio >= config.min_p]
    best = ranked[0][1]
    ranked = [(i, x) for i, x in ranked if (x - best) / config.temperature >= portable_math.LEAST_EXPONENT]
    return dict(zip([i for i, _ in ranked], softmax([x / config.temperature for _, x in ranked]), strict=True))


def softmax(values: list[float]) -> list[float]:
    weights = [math.exp(x - max(values)) for x in values]
    return [w / math.fsum(weights) for w in weights]


logits_rows = hnp.arrays(
    np.float32,
    st.integers(1, 30),
    # halves, so that ties are common
    elements=st.one_of(st.integers(-20, 20).map(lambda n: n / 2), st.floats(-15, 15, width=32)),
)
configs = st.builds(
    SamplingConfig,
    temperature=st.sampled_from([0.0, 0.1, 0.8, 1.0, 2.0]),
    top_k=st.integers(0, 35),
    top_p=st.sampled_from([0.0, 0.3, 0.9, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    repeat_penalty=st.sampled_from([0.5, 1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.5, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.25, -0.5]),
    repeat_last_n=st.integers(-1, 4),
    logit_bias=st.lists(st.tuples(st.integers(0, 31), st.sampled_from([-2.0, 1.5, 30.0])), max_size=3).map(tuple),
)


@pytest.mark.thorough
@settings(max_examples=500)
@given(logits_rows, st.lists(st.integers(-3, 32), max_size=6), st.integers(1, 40), configs)
def test_the_chain_agrees_with_the_slow_definition(
    logits: F32, history: list[int], limit: int, config: SamplingConfig
) -> None:
    ids = np.array(history, np.int32)
    before = logits.copy()
    probs = Sampler(config, limit).distribution(logits, ids)
    assert (logits == before).all()
    assert probs.dtype == np.float32
    assert probs.shape == logits.shape
    assert abs(probs.sum(dtype=np.float64) - 1) < 1e-6
    assert not probs[limit:].any()
    if not config.temperature:
        assert probs[Sampler(config, limit).likeliest(logits, ids)] == 1
    expected = slow(logits, ids, limit, config)
    if expected is not None:
        assert set(np.flatnonzero(probs)) == {i for i, p in expected.items() if np.float32(p) > 0}
        for i, p in expected.items():
            assert probs[i] == pytest.approx(p, rel=1e-5, abs=1e-12)


@pytest.mark.thorough
@given(hnp.arrays(np.float32, st.integers(2, 60), elements=st.floats(-3, 3, width=32)), st.integers(1, 70))
def test_top_k_keeps_exactly_k_also_with_ties(logits: F32, k: int) -> None:
    ids_kept = np.flatnonzero(distribution(logits, **{**KEEP_ALL, "top_k": k}))
    assert len(ids_kept) == min(k, len(logits))
    order = np.argsort(-logits, kind="stable")
    assert set(ids_kept) == set(order[:k])


@pytest.mark.thorough
@given(logits_rows, st.sampled_from([0.2, 1.0, 3.0]))
def test_a_likelier_logit_never_gets_less(logits: F32, temperature: float) -> None:
    probs = distribution(logits, **{**KEEP_ALL, "temperature": temperature})
    order = np.argsort(logits, kind="stable")
    assert (np.diff(probs[order]) >= 0).all()


def test_each_step_equals_a_computation_by_hand() -> None:
    row = np.log([0.5, 0.3, 0.15, 0.05])
    assert distribution(row, **KEEP_ALL) == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=1e-6)
    assert distribution(row, **{**KEEP_ALL, "top_k": 2}) == pytest.approx([0.625, 0.375, 0, 0], abs=1e-6)
    assert distribution(row, **{**KEEP_ALL, "top_p": 0.79}) == pytest.approx([0.625, 0.375, 0, 0], abs=1e-6)
    assert distribution(row, **{**KEEP_ALL, "top_p": 0.0}) == pytest.approx([1, 0, 0, 0])
    assert distribution(row, **{**KEEP_ALL, "min_p": 0.59}) == pytest.approx([0.625, 0.375, 0, 0], abs=1e-6)
    assert distribution(row, **{**KEEP_ALL, "temperature": 0.5, "top_k": 2}) == pytest.approx(
        [25 / 34, 9 / 34, 0, 0], abs=1e-6
    )


def test_top_p_sees_what_top_k_left() -> None:
    row = np.log([0.4, 0.3, 0.2, 0.1])
    assert np.count_nonzero(distribution(row, **{**KEEP_ALL, "top_k": 2, "top_p": 0.56})) == 1  # 0.4 / 0.7 > 0.56


def test_temperature_is_the_last_step() -> None:
    row = np.log([0.5, 0.3, 0.2])
    assert np.count_nonzero(distribution(row, **{**KEEP_ALL, "temperature": 100.0, "top_p": 0.5})) == 1


def test_temperature_zero_takes_the_first_of_the_likeliest_after_the_penalty() -> None:
    assert distribution([1, 3, 3, 2], temperature=0).tolist() == [0, 1, 0, 0]
    assert distribution([1, 3, 3, 2], [1], temperature=0, repeat_penalty=1.5).tolist() == [0, 0, 1, 0]


def test_the_penalty_lowers_recent_tokens_once_for_either_sign() -> None:
    args = {**KEEP_ALL, "repeat_penalty": 2.0}
    plain = distribution([1, -0.5, 0, 1], **KEEP_ALL)
    assert distribution([2, -0.25, 0, 1], [0, 0, 1, -5, 77], **args) == pytest.approx(plain)
    assert distribution([1, -0.5, 0, 2], [0, 1, 3], **{**args, "repeat_last_n": 1}) == pytest.approx(plain)
    assert distribution([2, -0.5, 0, 2], [0, 3], **{**args, "repeat_last_n": -1}) == pytest.approx(plain)
    assert distribution([1, -0.5, 0, 1], [0, 3], **{**args, "repeat_last_n": 0}) == pytest.approx(plain)


@pytest.mark.parametrize("temperature", [0.0, 1e-30, 0.8])
def test_ids_past_the_tokenizer_are_never_drawn(temperature: float) -> None:
    logits = np.zeros(40, np.float32)
    logits[10:] = 50
    logits[20] = np.nan  # the value is never read
    probs = distribution(logits, limit=10, temperature=temperature)
    assert {PositionRandom(seed=0).token(probs, at) for at in range(300)} <= set(range(10))
    assert not probs[10:].any()


@pytest.mark.parametrize("temperature", [0.0, 1e-38, 0.8, 1e30])
@pytest.mark.parametrize(
    "row", [[1e30, -1e30, 0], [3e38] * 3, [-3e38, -3e38, -3e38], [-np.inf, 0, -np.inf], [0.0] * 3, [7.0]]
)
def test_extreme_logits_give_a_distribution(row: list[float], temperature: float) -> None:
    for penalty in (1.0, 0.01, 100.0):
        probs = distribution(row, [0, 1], temperature=temperature, repeat_penalty=penalty)
        assert abs(probs.sum(dtype=np.float64) - 1) < 1e-6
        assert not probs[np.array(row) == -np.inf].any()
    if temperature == 0.8 and len(set(row)) == 1:
        assert distribution(row) == pytest.approx([1 / len(row)] * len(row))


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_logits_that_are_not_finite_are_reported_with_their_place(temperature: float) -> None:
    with pytest.raises(DeviceError, match="the logit of token 2 is nan"):
        distribution([0, 1, np.nan], temperature=temperature)
    with pytest.raises(DeviceError, match="the logit of token 1 is inf"):
        distribution([0, np.inf, 1], temperature=temperature)
    with pytest.raises(DeviceError, match="all 2 logits are -inf"):
        distribution([-np.inf, -np.inf, 1], limit=2, temperature=temperature)


def test_a_forbidden_token_never_comes() -> None:
    probs = distribution([3, 2, 1], logit_bias=((0, -np.inf),), **KEEP_ALL)
    assert probs[0] == 0
    assert probs[1:] == pytest.approx(softmax([2, 1]))
    assert distribution([3, 2, 1], temperature=0, logit_bias=((0, -np.inf),)).argmax() == 1


def test_a_bias_beyond_the_vocabulary_changes_nothing() -> None:
    plain, biased = distribution([3, 2, 1], **KEEP_ALL), distribution([3, 2, 1], logit_bias=((7, 5.0),), **KEEP_ALL)
    assert biased.tolist() == plain.tolist()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_forbidding_every_token_is_refused(temperature: float) -> None:
    bias = tuple((token, -np.inf) for token in range(3))
    with pytest.raises(UsageError, match="logit_bias forbids every token"):
        distribution([3, 2, 1], temperature=temperature, logit_bias=bias)


def test_penalties_by_presence_and_by_count() -> None:
    args = {**KEEP_ALL, "presence_penalty": 0.5, "frequency_penalty": 0.25, "repeat_last_n": -1}
    plain = distribution([1 - 0.5 - 3 * 0.25, 2, 0 - 0.5 - 0.25], **KEEP_ALL)
    assert distribution([1, 2, 0], [0, 0, 2, 0], **args) == pytest.approx(plain)


@pytest.mark.parametrize(
    "settings",
    [
        {"presence_penalty": math.nan},
        {"frequency_penalty": math.inf},
        {"logit_bias": ((-1, 1.0),)},
        {"logit_bias": ((1, math.inf),)},
        {"logit_bias": ((1, math.nan),)},
    ],
)
def test_penalties_and_biases_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(settings))):
        SamplingConfig(**settings)


@pytest.mark.thorough
@given(
    st.lists(st.floats(0.0078125, 1, width=32), min_size=1, max_size=12),
    st.lists(st.integers(0, 12), max_size=6),
    configs.filter(lambda config: config.repeat_penalty == 1),
)
def test_a_sparse_guess_is_processed_as_a_row_of_logits_is(
    weights: list[float], history: list[int], config: SamplingConfig
) -> None:
    """The logarithms of a draft's probabilities, as a row of logits, and as a guess that lists its tokens."""
    probs = np.array(weights, np.float32)
    sampler, text = Sampler(config, len(probs)), np.array(history, np.int32)
    whole = sampler.distribution(np.log(probs), text).copy()
    guess = sampler.sparse(Sparse(ids=np.arange(len(probs), dtype=np.int32), probs=probs, raw=True), text)
    spread = np.zeros(len(probs), np.float32)
    spread[guess.ids] = guess.probs
    assert not guess.raw
    assert spread == pytest.approx(whole, abs=1e-6)


def test_defaults_are_those_of_llama_cpp() -> None:
    config = SamplingConfig()
    assert (config.temperature, config.top_k, config.top_p, config.min_p) == (0.8, 40, 0.95, 0.05)
    assert (config.repeat_penalty, config.repeat_last_n, config.seed) == (1.0, 64, -1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1}, "temperature must be >= 0, not -1"),
        ({"temperature": math.nan}, "temperature must be >= 0, not nan"),
        ({"temperature": math.inf}, "temperature must be finite, not inf"),
        ({"top_k": -1}, "top_k must be >= 0, not -1"),
        ({"top_k": 2.5}, "top_k must be a whole number, not 2.5"),
        ({"top_p": 1.5}, "top_p must be from 0 to 1, not 1.5"),
        ({"min_p": -0.1}, "min_p must be from 0 to 1, not -0.1"),
        ({"repeat_penalty": 0}, "repeat_penalty must be > 0, not 0"),
        ({"repeat_penalty": math.inf}, "repeat_penalty must be finite, not inf"),
        ({"repeat_last_n": -2}, "repeat_last_n must be >= -1, not -2"),
        ({"seed": -2}, "seed must be >= -1, not -2"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        SamplingConfig(**settings)
    assert str(caught.value) == message


def test_a_vocabulary_without_ids_is_refused() -> None:
    with pytest.raises(UsageError, match="vocab_limit must be >= 1, not 0"):
        Sampler(SamplingConfig(), 0)


# Whole rows


@pytest.mark.parametrize("options", [{"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.5}, {"seed": 7}, {"repeat_last_n": 2}])
def test_greedy_decoding_needs_the_likeliest_token_only(options: dict[str, Any]) -> None:
    assert SamplingConfig(temperature=0, **options).likeliest_needed == 1


@pytest.mark.parametrize("options", [{}, {"top_p": 0.5}, {"min_p": 0.5}, {"seed": 7}, {"repeat_last_n": 2}])
def test_sampling_needs_the_tokens_that_top_k_keeps(options: dict[str, Any]) -> None:
    assert SamplingConfig(temperature=0.1, top_k=7, **options).likeliest_needed == 7
    assert SamplingConfig(temperature=0.1, top_k=0, **options).likeliest_needed == 0


@pytest.mark.parametrize("temperature", [0, 0.9])
def test_a_penalty_needs_whole_rows(temperature: float) -> None:
    assert SamplingConfig(temperature=temperature, repeat_penalty=1.1).likeliest_needed == 0
    assert SamplingConfig(temperature=temperature, logit_bias=((1, 1.0),)).likeliest_needed == 0


def test_an_unknown_option_needs_whole_rows() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Later(SamplingConfig):
        presence_penalty: float = 0.0

    assert Later(temperature=0).likeliest_needed == 1
    assert Later(temperature=0, presence_penalty=0.5).likeliest_needed == 0


@pytest.mark.thorough
@given(
    hnp.arrays(np.float32, st.integers(8, 40), elements=st.integers(-5, 5).map(float)),
    st.integers(0, 6),
    st.sampled_from([0, 0.7]),
    st.sampled_from([{}, {"top_p": 0.3}, {"min_p": 0.9}, {"top_p": 0.9, "min_p": 0.1}, {"repeat_last_n": -1}]),
)
def test_options_without_whole_rows_have_the_same_distribution_of_the_likeliest(
    logits: F32, more: int, temperature: float, options: dict[str, Any]
) -> None:
    """Use rows like an accelerator's: finite at the likeliest tokens, as many as are needed or more, and -inf elsewhere."""
    config = SamplingConfig(temperature=temperature, top_k=3, **options)
    partial = np.full_like(logits, -np.inf)
    likeliest = np.argsort(-logits, kind="stable")[: config.likeliest_needed + more]
    partial[likeliest] = logits[likeliest]
    history = np.arange(3, dtype=np.int32)
    sampler = Sampler(config, len(logits))
    whole = sampler.distribution(logits, history).copy()
    assert sampler.distribution(partial, history).tobytes() == whole.tobytes()
    assert sampler.likeliest(partial, history) == sampler.likeliest(logits, history)
