"""Test the loop, plain and with drafters that are right, wrong, or both: the text never changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.errors import EdgedecError
from edgedec.plugins import load
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.decoders import autoregressive
from edgedec.runtime.protocols import Limits, Pass, Target
from edgedec.runtime.sampling.sampling import Sampler, SamplingConfig
from edgedec.runtime.targets import open_target
from tests.runtime.support.bench_writer import Writer
from tests.runtime.support.fake_world import ScriptedDraft, Willing

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 48,
    "intermediate_size": 100,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "vocab_size": 61,
    "max_position_embeddings": 96,
    "tie_word_embeddings": False,
}
LIMITS = Limits(nodes=8, depth=0, positions=64, cache_rows=256)  # tests keep several states open
PROMPT = np.array([3, 14, 15, 9, 2, 6, 5, 3, 5, 8, 9, 7], np.int32)


@pytest.fixture(autouse=True)
def willing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speculate always; tests/runtime/decoders/test_adaptive.py tests whether it pays."""
    monkeypatch.setattr(autoregressive, "Adaptive", Willing)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path = tmp_path_factory.mktemp("decoder") / "model.edgedec"
    write_random_bundle(path, CONFIG, "int8", seed=3)
    return Bundle.open(path)


@pytest.fixture(scope="module", params=["float_reference", "cpu"])
def target(request: pytest.FixtureRequest, bundle: Bundle) -> Target:
    return open_target(bundle, device=request.param, limits=LIMITS, threads=1)


def decoder(target: Target, drafter: Any = None, sampling: SamplingConfig | None = None) -> Writer:
    sampler = Sampler(sampling or SamplingConfig(temperature=0), CONFIG["vocab_size"])
    return Writer(
        target=target,
        state=target.open(LIMITS),
        drafter=drafter or load("edgedec.runtime.drafters", "none").create(),
        policy=load("edgedec.runtime.trees", "chain").create(),
        verifier=load("edgedec.runtime.verifiers", "match").create(),
        processor=sampler.distribution,
        vocab_limit=CONFIG["vocab_size"],
    )


def take(tokens: Iterator[int], n: int) -> list[int]:
    return list(islice(tokens, n))


def plain(target: Target, n: int, sampling: SamplingConfig | None = None) -> list[int]:
    return take(decoder(target, sampling=sampling).write(PROMPT, LIMITS), n)


def by_hand(target: Target, n: int) -> list[int]:
    """Return the text of the obvious loop, with the whole text in one pass per token."""
    ids: list[int] = PROMPT.tolist()
    for _ in range(n):
        state = target.open(LIMITS)
        for start in range(0, len(ids), LIMITS.nodes):
            chunk = np.array(ids[start : start + LIMITS.nodes], np.int32)
            work = Pass(ids=chunk, positions=np.arange(start, start + len(chunk), dtype=np.int32))
            (result,) = target.submit([(state, work)]).result()
            state.commit(np.arange(len(chunk), dtype=np.int32))
        ids.append(int(result.logits[0].argmax()))
    return list(ids[len(PROMPT) :])


def test_plain_greedy_equals_the_obvious_loop(target: Target) -> None:
    assert plain(target, 20) == by_hand(target, 20)


@pytest.mark.thorough(sample=8)
@pytest.mark.parametrize("depth", [1, 3, 7])
@pytest.mark.parametrize("kind", ["right", "wrong", "half", "silent", "sometimes"])
def test_greedy_text_does_not_depend_on_the_drafter(target: Target, kind: str, depth: int) -> None:
    expected = plain(target, 40)

    def guess(position: int) -> int | None:
        right = [*PROMPT.tolist(), *expected, *[0] * 20][position]
        false_guess = (right + 1) % CONFIG["vocab_size"]
        guesses: dict[str, int | None] = {
            "right": right,
            "wrong": false_guess,
            "half": right if position % 3 else false_guess,
            "silent": None,
            "sometimes": right if position % 5 else None,
        }
        return guesses[kind]

    drafter = ScriptedDraft(guess)
    limits = replace(LIMITS, depth=depth)
    tokens = take(decoder(target, drafter).write(PROMPT, limits), 40)
    assert tokens == expected
    if kind == "right":
        assert all(len(outcome.path) == depth + 1 for outcome in drafter.outcomes[:-1])
    if kind == "wrong":
        assert all(len(outcome.path) == 1 for outcome in drafter.outcomes)


def test_sampled_text_with_one_seed_does_not_depend_on_the_drafter(bundle: Bundle) -> None:
    target = open_target(bundle, device="float_reference", limits=LIMITS)
    sampling = SamplingConfig(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    expected = plain(target, 30, sampling)
    text = [*PROMPT.tolist(), *expected, *[0] * 20]
    drafter = ScriptedDraft(lambda position: text[position] if position % 4 else 1)
    limits = replace(LIMITS, depth=5)
    tokens = take(decoder(target, drafter, sampling).write(PROMPT, limits), 30)
    assert tokens == expected
    assert expected != plain(target, 30)  # it did sample


def test_generation_ends_when_the_context_is_full(target: Target) -> None:
    whole = list(decoder(target).write(PROMPT, LIMITS))
    # Rows 0..63 hold prompt and answer except for the very last token, which needs none.
    assert len(PROMPT) + len(whole) == LIMITS.positions + 1
    right = ScriptedDraft(lambda position: [*PROMPT.tolist(), *whole, *[0] * 20][position])
    limits = replace(LIMITS, depth=7)
    assert list(decoder(target, right).write(PROMPT, limits)) == whole


def test_a_second_prompt_keeps_the_shared_rows(target: Target) -> None:
    writer = decoder(target)
    first = take(writer.write(PROMPT, LIMITS), 10)
    longer = np.array([*PROMPT, *first, 4, 4, 4], np.int32)
    submitted: list[int] = []
    submit = target.submit

    class Counting:
        info = target.info

        def submit(self, work: Any) -> Any:
            submitted.extend(len(item.ids) for _, item in work)
            return submit(work)

    writer.target = Counting()  # type: ignore[assignment]
    second = take(writer.write(longer, LIMITS), 5)
    assert sum(submitted) <= 3 + 5 + 1  # the new prompt tokens, and the answer
    fresh = take(decoder(target).write(longer, LIMITS), 5)
    assert second == fresh
    continued = take(writer.write(PROMPT[:5], LIMITS), 5)
    assert continued == take(decoder(target).write(PROMPT[:5], LIMITS), 5)


def test_stopping_inside_an_accepted_run_leaves_a_clean_state(target: Target) -> None:
    expected = plain(target, 40)
    text = [*PROMPT.tolist(), *expected, *[0] * 20]
    writer = decoder(target, ScriptedDraft(lambda position: text[position]))
    limits = replace(LIMITS, depth=7)
    assert take(writer.write(PROMPT, limits), 3) == expected[:3]
    assert take(writer.write(PROMPT, limits), 20) == expected[:20]


@pytest.mark.parametrize("length", [0, 64, 80])
def test_impossible_prompts_are_refused(target: Target, length: int) -> None:
    message = rf"the prompt has {length} tokens, the context holds 64" if length else "the prompt has no tokens"
    with pytest.raises(EdgedecError, match=message):
        next(decoder(target).write(np.ones(length, np.int32), LIMITS))


def test_nan_logits_are_an_error(target: Target) -> None:
    writer = decoder(target)
    inner = writer.processor
    writer.processor = lambda logits, history: inner(np.full_like(logits, np.nan), history)
    with pytest.raises(EdgedecError, match="nan"):
        next(writer.write(PROMPT, LIMITS))


def test_an_interrupted_prefill_ends_and_the_next_answer_is_clean(target: Target) -> None:
    writer = decoder(target)
    interrupts = iter([False, True])
    writer.interrupted = lambda: next(interrupts)
    assert list(writer.write(PROMPT, LIMITS)) == []
    assert writer.state.length == LIMITS.nodes  # the first chunk stayed
    writer.interrupted = lambda: False
    assert take(writer.write(PROMPT, LIMITS), 10) == plain(target, 10)
