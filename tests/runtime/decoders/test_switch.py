"""Test the decoder that switches between a small and a large model, against a loop that computes everything anew."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.errors import DeviceError, UsageError
from edgedec.runtime.decoders._plugin import choose_decoder
from edgedec.runtime.decoders.switch import SwitchConfig, SwitchCounts, SwitchDecoder, entropy_bits
from edgedec.runtime.protocols import F32, Drafting, Limits, Pass, PassResult, Token
from edgedec.runtime.targets import open_target
from tests.runtime.support.bench_decoders import LIMITS, PROMPT, Pair, make_pair, request

COUNT = 40  # tokens of a text
THRESHOLD = 5.1  # bits; the entropies of the random small model lie on both sides


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("pair"))


def logits_after(bundle: Bundle, ids: list[int]) -> F32:
    """Return the logits after ``ids`` in one pass over an empty cache."""
    limits = Limits(nodes=64, depth=0, positions=96)
    target = open_target(bundle, limits=limits, threads=1)
    work = Pass(ids=np.array(ids, np.int32), positions=np.arange(len(ids), dtype=np.int32))
    (result,) = target.submit([(target.open(limits), work)]).result()
    return np.array(result.logits[0])


@dataclass
class Expected:
    """A text and its counts, as the definition of the decoder says."""

    ids: list[int] = field(default_factory=list)
    small: list[bool] = field(default_factory=list)
    agrees: list[bool] = field(default_factory=list)  # the large model would have written the token, too


def by_hand(pair: Pair, config: SwitchConfig, *, temperature: float, count: int = COUNT) -> Expected:
    """Return the text of the obvious loop."""
    wish, expected, entropies = request(temperature=temperature), Expected(), list[float]()

    def choose(bundle: Bundle, ids: list[int]) -> int:
        text = np.array(ids, np.int32)
        return wish.random.token(wish.processor(logits_after(bundle, ids), text), len(text))

    for _ in range(count):
        ids = [*PROMPT.tolist(), *expected.ids]
        scores = logits_after(pair.small, ids).astype(np.float64)
        probs = np.exp(scores - scores.max())
        probs /= probs.sum()
        entropies.append(float(-(probs * np.log2(probs)).sum()))
        small = float(np.mean(entropies[-config.window :])) < config.entropy
        large_choice = choose(pair.large, ids)
        expected.ids.append(choose(pair.small, ids) if small else large_choice)
        expected.small.append(small)
        expected.agrees.append(expected.ids[-1] == large_choice)
    return expected


def switching(pair: Pair, entropy: float, window: int = 1) -> SwitchDecoder:
    decoder = pair.decoder(f"switch:entropy={entropy},window={window}")
    assert isinstance(decoder, SwitchDecoder)
    return decoder


def take(tokens: Iterator[Token], count: int = COUNT) -> list[Token]:
    return list(islice(tokens, count))


@pytest.mark.thorough
@pytest.mark.parametrize("window", [1, 4])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_text_and_counts_equal_those_of_the_obvious_loop(pair: Pair, temperature: float, window: int) -> None:
    config = SwitchConfig(entropy=THRESHOLD, window=window)
    expected = by_hand(pair, config, temperature=temperature)
    decoder = switching(pair, THRESHOLD, window)
    tokens = take(decoder.generate(request(temperature=temperature)))
    assert [token.id for token in tokens] == expected.ids
    assert [token.guessed for token in tokens] == expected.small
    last_large = max(at for at, small in enumerate(expected.small) if not small)
    compared = [expected.agrees[at] for at in range(last_large) if expected.small[at]]
    assert decoder.counts == SwitchCounts(
        config=config,
        large_tokens=expected.small.count(False),
        small_tokens=expected.small.count(True),
        switches=sum(a != b for a, b in zip(expected.small, expected.small[1:], strict=False)),
        compared=len(compared),
        agreed=sum(compared),
    )
    assert 0 < decoder.counts.small_tokens < COUNT  # both models wrote
    assert decoder.counts.compared > 0


def test_a_threshold_of_zero_is_the_large_model_alone(pair: Pair) -> None:
    wish, decoder = request(temperature=0.8), switching(pair, 0.0)
    alone = [token.id for token in take(pair.decoder("autoregressive").generate(wish))]
    assert take(decoder.generate(wish)) == [Token(token, guessed=False) for token in alone]
    assert (decoder.counts.large_tokens, decoder.counts.agreement) == (COUNT, None)
    assert decoder.rounds.count == COUNT  # one pass for each token


def test_a_threshold_above_all_entropies_is_the_small_model_alone(pair: Pair) -> None:
    wish, decoder = request(temperature=0.8), switching(pair, 64.0)
    swapped = Pair(large=pair.small, small=pair.large)
    alone = [token.id for token in take(swapped.decoder("autoregressive").generate(wish))]
    assert take(decoder.generate(wish)) == [Token(token, guessed=True) for token in alone]
    assert (decoder.counts.small_tokens, decoder.counts.compared) == (COUNT, 0)
    assert decoder.rounds.count == 0  # the large model read the prompt, and nothing else


def test_two_equal_models_agree_on_every_token(pair: Pair) -> None:
    twins = Pair(large=pair.large, small=pair.large)
    wish, decoder = request(temperature=0.8), switching(twins, THRESHOLD)
    alone = [token.id for token in take(pair.decoder("autoregressive").generate(wish))]
    tokens = take(decoder.generate(wish))
    assert [token.id for token in tokens] == alone
    assert decoder.counts.compared > 0
    assert decoder.counts.agreement == 1.0
    assert len({token.guessed for token in tokens}) == 2


def test_the_large_model_writes_where_the_small_one_has_no_context(tmp_path: Path) -> None:
    pair = make_pair(tmp_path, max_position_embeddings=30)
    tokens = list(switching(pair, 64.0).generate(request()))
    assert len(PROMPT) + len(tokens) == LIMITS.positions + 1
    small = [token.guessed for token in tokens]
    assert small == sorted(small, reverse=True)
    assert small.count(True) == 30 - len(PROMPT) + 1  # the last one follows 30 rows


def test_the_large_model_writes_after_an_id_that_the_small_one_lacks(tmp_path: Path) -> None:
    pair = make_pair(tmp_path, vocab_size=50)
    prompt = np.array([*PROMPT[:5], 55, *PROMPT[5:]], np.int32)
    decoder = switching(pair, 64.0)
    assert not any(token.guessed for token in take(decoder.generate(request(prompt))))
    assert all(token.guessed for token in take(decoder.generate(request(PROMPT)), 3))


def test_an_interrupted_reading_ends_the_answer_and_keeps_the_cache_in_step(pair: Pair) -> None:
    decoder, pressed = switching(pair, 64.0), False
    tokens = decoder.generate(request(interrupted=lambda: pressed))
    take(tokens, 3 * LIMITS.nodes)
    pressed = True
    decoder.config = SwitchConfig(entropy=0.0, window=1)  # the large model takes over: it needs several passes
    assert list(tokens) == []
    assert decoder.state.length == len(decoder.cached) == len(PROMPT) - 1 + LIMITS.nodes
    assert decoder.counts.compared == LIMITS.nodes


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_small_model_that_computes_no_numbers_is_an_error(
    pair: Pair, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = switching(pair, THRESHOLD)
    small = decoder.open_draft(LIMITS)
    run = small._run  # type: ignore[attr-defined]

    def spoiled(work: Pass) -> Drafting[PassResult]:
        result: PassResult = yield from run(work)
        if len(result.logits):  # the passes over the prompt have none
            result.logits[0, 7] = value
        return result

    monkeypatch.setattr(small, "_run", spoiled)
    with pytest.raises(DeviceError, match=f"the draft model .*small computed a logit that is {value}"):
        take(decoder.generate(request()), 1)


def test_entropy_equals_the_definition() -> None:
    assert entropy_bits(np.zeros(64, np.float32)) == pytest.approx(6.0, abs=1e-12)
    assert entropy_bits(np.array([0.0, -math.inf, -math.inf], np.float32)) == 0.0
    assert entropy_bits(np.array([5.0, 5.0, -math.inf, -300.0], np.float32)) == pytest.approx(1.0, abs=1e-12)
    logits = np.random.default_rng(0).normal(0, 3, 2048).astype(np.float32)
    probs = np.exp(logits.astype(np.float64))
    probs /= probs.sum()
    assert entropy_bits(logits) == pytest.approx(-(probs * np.log2(probs)).sum(), abs=1e-9)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("entropy=-0.1", "entropy must be 0 to 64 bits, not -0.1"),
        ("entropy=nan", "entropy must be 0 to 64 bits, not nan"),
        ("entropy=64.5", "entropy must be 0 to 64 bits, not 64.5"),
        ("window=0", "window must be 1 to 4096 positions, not 0"),
        ("window=4097", "window must be 1 to 4096 positions, not 4097"),
        ("window=1.5", "window must be a whole number, not '1.5'"),
        ("entropy=", "entropy must be a number, not ''"),
        ("entropy=1,entropy=1", "'entropy=1' is given twice; they are entropy=2.0, window=1, written as"),
        (
            "entropy",
            "'entropy' has no value; they are entropy=2.0, window=1, written as switch:OPTION=VALUE",
        ),
        ("", "'' is not one of its options"),
        ("temp=1", "'temp=1' is not one of its options"),
    ],
)
def test_options_that_are_wrong_are_named(settings: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"--decoder switch: {message}"):
        choose_decoder(f"switch:{settings}")


def test_a_decoder_without_options_takes_none() -> None:
    with pytest.raises(UsageError, match="--decoder autoregressive has no options, and 'x=1' is given; leave it out"):
        choose_decoder("autoregressive:x=1")
    with pytest.raises(UsageError, match="--decoder must be one of autoregressive, switch"):
        choose_decoder("swich:entropy=1")
