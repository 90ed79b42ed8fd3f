"""Run one suite over every decoder: the promises of `protocols.Decoder`."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from edgedec.errors import EdgedecError, UsageError
from edgedec.plugins import names
from edgedec.runtime.decoders._cached import CachedDecoder
from edgedec.runtime.decoders._plugin import DECODERS
from edgedec.runtime.protocols import Request
from tests.runtime.support.bench_decoders import LIMITS, PROMPT, VOCAB, Pair, make_pair, request

# Options with which all parts of a decoder run. The small model's entropies lie on both sides of this one (bits).
OPTIONS = {"switch": ":entropy=5.1,window=2"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(params=[name + OPTIONS.get(name, "") for name in names(DECODERS)])
def name(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


@pytest.fixture
def decoder(pair: Pair, name: str) -> CachedDecoder:
    return pair.decoder(name)


def write(decoder: CachedDecoder, wish: Request, count: int = 1000) -> list[int]:
    return [token.id for token in islice(decoder.generate(wish), count)]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_an_answer_fills_the_context_with_ids_of_the_tokenizer(decoder: CachedDecoder, temperature: float) -> None:
    tokens = write(decoder, request(temperature=temperature))
    assert len(PROMPT) + len(tokens) == LIMITS.positions + 1  # the last token needs no row of the cache
    assert all(0 <= token < VOCAB for token in tokens)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_text_is_a_function_of_prompt_options_and_seed(
    decoder: CachedDecoder, name: str, pair: Pair, temperature: float
) -> None:
    wish = request(temperature=temperature, seed=5)
    first = write(decoder, wish)
    write(decoder, request(PROMPT[:4], temperature=temperature, seed=6), 7)  # leaves other rows in both caches
    assert write(decoder, wish) == first
    assert write(pair.decoder(name), wish) == first
    if temperature:
        assert write(decoder, request(temperature=temperature, seed=7)) != first


def test_the_size_of_passes_over_the_prompt_changes_no_text(decoder: CachedDecoder, name: str, pair: Pair) -> None:
    expected = write(decoder, request())
    other = pair.decoder(name)
    assert write(other, request(limits=replace(LIMITS, nodes=other.recipe.least))) == expected


@pytest.mark.parametrize("count", [1, 2, 9])
def test_an_answer_that_is_left_early_keeps_the_cache_in_step(decoder: CachedDecoder, count: int) -> None:
    expected = write(decoder, request(), count + 12)
    tokens = write(decoder, request(), count)
    assert tokens == expected[:count]
    assert decoder.state.length == len(decoder.cached)
    longer = np.concatenate([PROMPT, np.array(tokens, np.int32)])
    assert decoder.shared_prefix(longer) <= len(longer) - 1
    assert decoder.cached == longer[: len(decoder.cached)].tolist()


@pytest.mark.parametrize("length", [0, LIMITS.positions, LIMITS.positions + 1])
def test_a_prompt_that_does_not_fit_is_refused(decoder: CachedDecoder, length: int) -> None:
    with pytest.raises(EdgedecError, match=r"the prompt has (no|6[45]) tokens"):
        write(decoder, request(np.ones(length, np.int32)))


def test_two_answers_at_a_time_are_refused(decoder: CachedDecoder) -> None:
    first = decoder.generate(request())
    next(first)
    expected = write(decoder, request(PROMPT[:5]), 3)
    with pytest.raises(UsageError, match="another answer was started before this one ended"):
        next(first)
    assert write(decoder, request(PROMPT[:5]), 3) == expected


def test_a_request_that_is_interrupted_in_its_prompt_writes_nothing(decoder: CachedDecoder) -> None:
    expected = write(decoder, request(), 5)
    asked = 0

    def interrupted() -> bool:
        nonlocal asked
        asked += 1
        return asked > 1

    other = request(PROMPT[::-1].copy(), interrupted=interrupted)
    assert write(decoder, other) == []
    assert decoder.state.length == len(decoder.cached) == LIMITS.nodes  # one pass of the prompt
    assert write(decoder, request(), 5) == expected


def test_statistics_are_those_of_the_last_request(decoder: CachedDecoder) -> None:
    write(decoder, request(), 20)
    write(decoder, request(), 3)
    assert decoder.rounds.count <= 3
    decoder.begin()
    assert decoder.rounds.count == 0
