"""Test sessions on an accelerator whose program is interpreted; tests/sim/devices/test_sessions.py has the RTL."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.errors import BudgetError, UsageError
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.accelerator.options import AcceleratorOptions
from edgedec.runtime.driver.driver import BEST, WHOLE_ROWS, Driver
from edgedec.runtime.driver.parts import PartRows
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.protocols import Target
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.answer import Answer
from edgedec.runtime.session.session import Session
from edgedec.runtime.targets import load_target

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
OPTIONS = AcceleratorOptions(overrides={"slots": 8})
GREEDY = SamplingConfig(temperature=0)
# text that repeats itself, so that drafters that copy have something to copy
PROMPT = np.array(([5, 9, 12, 7] * 5)[:18], np.int32)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("with a space") / "model.edgedec"
    write_random_bundle(folder, CONFIG, "ternary")
    return folder


def answer(path: Path, *, spec: SpecConfig | None = None, **options: Any) -> Answer:
    sampling = options.pop("sampling", GREEDY)
    with Session.open(path, device="interpreter", accelerator=OPTIONS, spec=spec, **options) as session:
        return session.generate(PROMPT, n_predict=40, sampling=sampling, ignore_eos=True)


@pytest.fixture(scope="module")
def plain(path: Path) -> Answer:
    return answer(path)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("drafter", "tree"),
    [("ngram", "chain"), ("copy", "static"), ("stand", "dynamic"), ("trigram", "delayed"), ("auto", "hardware")],
)
def test_speculation_does_not_change_the_text(path: Path, plain: Answer, drafter: str, tree: str) -> None:
    actual = answer(path, spec=SpecConfig(drafter=drafter, policy=tree))
    assert actual.tokens == plain.tokens
    timings = actual.timings.as_json()
    assert timings["lossless"] == "exact"
    assert timings["accelerator"]["decode"]["passes"] <= 40


@pytest.mark.thorough
def test_some_guesses_are_accepted(path: Path, plain: Answer) -> None:
    """Check this because the test above would otherwise compare plain texts."""
    answered = answer(path, spec=SpecConfig(drafter="ngram"))
    assert sum(answered.timings.rounds.accepted) > 0
    assert answered.timings.as_json()["accelerator"]["decode"]["passes"] < 40


@pytest.mark.thorough
def test_a_draft_model_runs_on_the_host(path: Path, plain: Answer) -> None:
    answered = answer(path, spec=SpecConfig(drafter="model", draft=path, policy="dynamic"))
    assert answered.tokens == plain.tokens
    assert answered.timings.rounds.drafted > 0


@pytest.mark.thorough
def test_sampling_reads_whole_rows_and_depends_on_the_seed(path: Path) -> None:
    sampling_options = SamplingConfig(temperature=1.0, top_k=0, seed=7)
    first, second = answer(path, sampling=sampling_options), answer(path, sampling=sampling_options)
    assert first.tokens == second.tokens
    different = answer(path, sampling=SamplingConfig(temperature=1.0, top_k=0, seed=8))
    assert different.tokens != first.tokens
    penalized = answer(path, sampling=SamplingConfig(temperature=0, repeat_penalty=1.5))
    assert len(penalized.tokens) == 40


@pytest.mark.thorough
@pytest.mark.parametrize("logprobs", [None, 2])
def test_few_tokens_are_sampled_as_from_whole_rows(
    path: Path, monkeypatch: pytest.MonkeyPatch, logprobs: int | None
) -> None:
    """The device's likeliest tokens are read, and for figures its sums, which are near those of whole rows."""
    outputs, submit = set[int](), Driver.submit_parts

    def submitted(driver: Driver, *arguments: Any, logits: int = BEST, **keywords: Any) -> None:
        outputs.add(logits)
        submit(driver, *arguments, logits=logits, **keywords)

    def texts() -> list[Answer]:
        outputs.clear()
        sampling = SamplingConfig(top_k=3, temperature=1.2)
        with Session.open(path, device="interpreter", accelerator=OPTIONS) as session:
            return [
                session.generate(PROMPT, n_predict=40, sampling=replace(sampling, seed=seed), logprobs=logprobs)
                for seed in range(3)
            ]

    monkeypatch.setattr(Driver, "submit_parts", submitted)
    few = texts()
    assert outputs == {BEST}  # the prompt's passes are posted

    def loaded(*arguments: Any, **keywords: Any) -> Target:
        target = load_target(*arguments, **keywords)
        target.info = replace(target.info, top_k=0)
        return target

    monkeypatch.setattr("edgedec.runtime.session.session.load_target", loaded)
    whole = texts()
    assert outputs == {WHOLE_ROWS}
    assert [one.tokens for one in few] == [one.tokens for one in whole]
    for one, other in zip(few, whole, strict=True):
        figures = [[token.logprob for token in text.logprobs or ()] for text in (one, other)]
        assert figures[0] == pytest.approx(figures[1], abs=3e-4)
        assert len(figures[0]) == (0 if logprobs is None else len(one.tokens))
    assert few[0].tokens != few[1].tokens


@pytest.mark.nightly(sample=1)
@pytest.mark.thorough
@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_rings_do_not_change_the_text(tmp_path: Path, drafter: str) -> None:
    """Write texts that wrap around the rings of one of two layers, and go back to a beginning that the ring has lost."""
    path = tmp_path / "windowed.edgedec"
    windowed = {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1}
    write_random_bundle(path, {**CONFIG, **windowed, "max_position_embeddings": 512}, "ternary")
    prompts = [PROMPT, np.concatenate([PROMPT, PROMPT, PROMPT]), PROMPT]

    def texts(**overrides: int) -> tuple[list[tuple[int, ...]], int]:
        options = AcceleratorOptions(overrides={"slots": 8, "context": 256, **overrides})
        spec = SpecConfig(drafter=drafter, policy="static" if drafter != "none" else "chain")
        with Session.open(path, device="interpreter", accelerator=options, spec=spec, ctx_size=256) as session:
            answers = [session.generate(prompt, n_predict=150, sampling=GREEDY, ignore_eos=True) for prompt in prompts]
            return [tuple(one.tokens) for one in answers], session.run.plan.items.get("kv_ring", 0)

    (ringed, ring_bytes), (full, none) = texts(), texts(window=0)
    assert ringed == full
    assert ringed[0] == ringed[2]
    assert ring_bytes > 0 == none


def test_timings_report_the_device(plain: Answer) -> None:
    timings = plain.timings.as_json()
    device = timings["accelerator"]
    assert (device["device"], device["kind"], device["board"], device["clock"]) == (
        "interpreter",
        "estimated",
        "kv260",
        "assumed",
    )
    assert device["prompt"]["rows"] == len(PROMPT) - 1
    assert device["prompt"]["passes"] == 3  # passes of 8 slots
    assert device["decode"]["rows"] == device["decode"]["passes"] == 40
    assert device["cycles_per_token"] is None, "the interpreter has no clock"
    assert device["tokens_per_second"] == pytest.approx(1000 * 40 / device["decode"]["ms"], rel=1e-3)
    assert 0 < device["tokens_per_second_with_host"] < device["tokens_per_second"]
    assert "energy" not in device, "nothing is guessed"
    json.dumps(timings, allow_nan=False)
    assert plain.timings.accelerator is not None
    assert "estimated" in plain.timings.accelerator.figures()


def test_memory_is_that_of_the_board(path: Path, plain: Answer) -> None:
    with Session.open(path, device="interpreter", accelerator=OPTIONS) as session:
        buffers = session.run.plan.items
    assert 0 < plain.timings.peak_bytes <= plain.timings.planned_bytes
    assert plain.timings.peak_bytes >= buffers["weights"] + buffers["kv"]
    with pytest.raises(BudgetError, match=r"(?s)needs .*weights"):
        Session.open(path, device="interpreter", accelerator=OPTIONS, budget_bytes=1 << 20)


@pytest.mark.thorough
def test_a_conversation_keeps_its_rows_after_ctrl_c(path: Path, plain: Answer) -> None:
    with Session.open(path, device="interpreter", accelerator=OPTIONS) as session:
        interrupts = iter([False] * 3 + [True] * 3)
        stopped = session.generate(
            PROMPT, n_predict=40, sampling=GREEDY, ignore_eos=True, interrupted=lambda: next(interrupts, True)
        )
        assert stopped.stop_reason == "interrupted"
        assert len(stopped.tokens) < 40
        again = session.generate(PROMPT, n_predict=40, sampling=GREEDY, ignore_eos=True)
        assert again.tokens == plain.tokens
        assert again.timings.prompt_kept == len(PROMPT) - 1


def test_progress_reports_the_prompt(path: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    with Session.open(path, device="interpreter", accelerator=OPTIONS) as session:
        session.generate(PROMPT, n_predict=1, sampling=GREEDY, progress=lambda *step: steps.append(step))
    assert [step for step in steps if step[0] == "prompt tokens"] == [
        ("prompt tokens", position, 17) for position in (0, 8, 16, 17)
    ]


def test_passes_over_a_prompt_run_while_the_next_ones_are_prepared(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures of an answer wait for the passes once, at the end of the prompt, or after an interruption."""
    with Session.open(path, device="interpreter", accelerator=OPTIONS) as session:
        passes = list[int]()
        for prompt in (np.tile(PROMPT, 2)[:33], np.tile(PROMPT[::-1], 2)[:33]):
            before, own = list[int](), Driver.post_parts

            def noted(driver: Driver, work: Sequence[PartRows], *, before: list[int] = before, own: Any = own) -> None:
                before.append(len(driver._posted.passes))
                own(driver, work)

            stops = iter([len(passes) > 0 and part == 2 for part in range(9)]).__next__
            with monkeypatch.context() as patch:
                patch.setattr(Driver, "post_parts", noted)
                answer = session.generate(prompt, n_predict=2, sampling=GREEDY, interrupted=stops)
            assert before == list(range(len(before)))
            figures = answer.timings.as_json()["accelerator"]
            assert figures["prompt"]["passes"] == len(before)
            assert figures["decode"]["passes"] == len(answer.tokens)
            passes.append(len(before))
        assert passes == [4, 2]


def test_an_answer_without_tokens_has_no_rounds(path: Path) -> None:
    with Session.open(path, device="interpreter", accelerator=OPTIONS) as session:
        session.generate(PROMPT, n_predict=5, sampling=GREEDY, ignore_eos=True)
        empty = session.generate(PROMPT, n_predict=0, sampling=GREEDY).timings
        assert empty.rounds.count == 0
        assert empty.as_json()["accelerator"]["decode"]["passes"] == 0
        changed = np.concatenate([PROMPT[:2], PROMPT])
        stopped = session.generate(changed, n_predict=5, sampling=GREEDY, interrupted=lambda: True)
        assert (stopped.tokens, stopped.timings.as_json()["accelerator"]["decode"]["passes"]) == ([], 0)


def test_the_context_of_an_accelerator_bounds_the_plan(path: Path) -> None:
    options = replace(OPTIONS, overrides={"slots": 8, "context": 64})
    with Session.open(path, device="interpreter", accelerator=options, ctx_size=64) as session:
        assert session.target.info.positions == 64
    with pytest.raises(UsageError, match="--ctx-size must be 1 to 64, which is what the accelerator has, not 96"):
        Session.open(path, device="interpreter", accelerator=options, ctx_size=96)


def test_options_of_accelerators_are_refused_on_other_devices(path: Path) -> None:
    with pytest.raises(UsageError, match=r"are for accelerators \(.*\), not --device cpu"):
        Session.open(path, device="cpu", accelerator=OPTIONS)
    with pytest.raises(UsageError, match="keeps keys and values in 8 bits, not 16"):
        Session.open(path, device="interpreter", kv_bits=16)
    with pytest.raises(UsageError, match="needs a bitstream: give a board bundle"):
        Session.open(path, device="pynq", accelerator=OPTIONS)
    with pytest.raises(UsageError, match=r"--device replay takes a file: write replay:FILE"):
        Session.open(path, device="replay", accelerator=OPTIONS)
    with pytest.raises(UsageError, match=r"--device interpreter takes no file: write interpreter"):
        Session.open(path, device="interpreter:x", accelerator=OPTIONS)
