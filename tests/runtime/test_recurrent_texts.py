"""Write texts with models whose states do not grow: a guess changes none, and a conversation goes on or begins again."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.capabilities import SlottedTarget
from edgedec.runtime.engine.spill import SpillFolder
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.planning.planning import make_plan
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.row_recipe import common_prefix
from edgedec.runtime.run_settings import RunSettings
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from edgedec.runtime.targets._cpu_footprint import cpu_footprint

CONTEXT = 256
MODELS: dict[str, dict[str, Any]] = {
    "mamba2": {
        **{"model_type": "mamba2", "hidden_size": 32, "num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 2},
        **{"num_hidden_layers": 2, "expand": 2, "vocab_size": 2048, "max_position_embeddings": CONTEXT},
    },
    "hybrid": {
        **{"model_type": "qwen3_5_text", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
        **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "full_attention_interval": 2},
        **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8},
        **{"linear_value_head_dim": 8, "vocab_size": 2048, "max_position_embeddings": CONTEXT},
    },
    "sambay": {
        **{"model_type": "phi4flash", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 8},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 20, "mamba_d_state": 4},
        **{"vocab_size": 2048, "max_position_embeddings": CONTEXT},
    },
}
# Texts that repeat themselves make drafters guess.
PROMPTS = [
    "One day a bear met a bear, and one day a bear met",
    "The moon and the sun and the moon and the sun and the",
    "Once upon a time there was a little",
]


DEVICES = [
    "float_reference",
    pytest.param("cpu", marks=pytest.mark.skipif(usable() is None, reason="the kernels' library was not built")),
]


@pytest.fixture(scope="module", params=MODELS)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("bundles") / str(request.param)
    tokenizer = (demo.bundle_path("demo") / "tokenizer.json").read_text("utf-8")
    write_random_bundle(path, MODELS[request.param], "int8", tokenizer_json=tokenizer)
    return path


def opened(bundle: Path, device: str, drafter: str = "none") -> Session:
    # A draft model's state goes back after each wrong guess.
    draft = bundle if drafter == "model" else None
    if bundle.name == "sambay" and device == "float_reference":
        pytest.skip("the reference computes each channel by itself, and a text of this model in half a minute")
    spec = SpecConfig(drafter=drafter, draft=draft, draft_max=5)
    return Session.open(bundle, device=device, ctx_size=CONTEXT, spec=spec)


@pytest.mark.nightly(sample=10)
@pytest.mark.thorough
@pytest.mark.parametrize("heat", [0.0, 1.0])
@pytest.mark.parametrize("drafter", ["copy", "ngram", "trigram", "stand"])
@pytest.mark.parametrize("device", DEVICES)
def test_guesses_do_not_change_a_text(bundle: Path, device: str, drafter: str, heat: float) -> None:
    with opened(bundle, device) as plain, opened(bundle, device, drafter) as guessing:
        guesses = 0
        for prompt in PROMPTS:
            wish: dict[str, Any] = {"n_predict": 40, "sampling": SamplingConfig(temperature=heat, seed=3)}
            expected = plain.generate(prompt, ignore_eos=True, **wish)
            answer = guessing.generate(prompt, ignore_eos=True, **wish)
            assert answer.tokens == expected.tokens
            guesses += answer.timings.rounds.drafted
        assert guesses


@pytest.mark.nightly(sample=2)
@pytest.mark.thorough
@pytest.mark.parametrize("device", DEVICES)
def test_a_conversation_goes_on_and_goes_back_to_snapshots(bundle: Path, device: str) -> None:
    """A prompt that continues the text keeps its rows, and one that leaves it earlier those of a snapshot.

    A snapshot is kept at the end of each prompt, and where a prompt left an earlier text. The reference keeps none.
    """
    options: dict[str, Any] = {"sampling": SamplingConfig(temperature=0), "ignore_eos": True}
    with opened(bundle, device) as session:
        start = session.encode(3 * PROMPTS[0]).tolist()
        end = len(start) - 20
        text = [*start, *session.generate(np.array(start, np.int32), n_predict=12, **options).tokens]
        prompts = [[*text, 9, 8, 7], start, [*start[:end], 9, 8], [*start[:end], 5], [*start[: end - 2], 5]]
        kept = [len(text) - 1, len(start) - 1, 0, end, 0]
        for number, (prompt, rows) in enumerate(zip(prompts, kept, strict=True)):
            answer = session.generate(np.array(prompt, np.int32), n_predict=6, **options)
            with opened(bundle, device) as fresh:
                assert answer.tokens == fresh.generate(np.array(prompt, np.int32), n_predict=6, **options).tokens
            assert answer.timings.prompt_kept == (rows if device == "cpu" or not number else 0)


@pytest.mark.thorough
@pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")
def test_texts_with_a_common_beginning_read_it_once(bundle: Path) -> None:
    """Three requests at a time wait for the beginning that one of them reads; a later one finds its snapshot."""
    options: dict[str, Any] = {"n_predict": 8, "sampling": SamplingConfig(temperature=0), "ignore_eos": True}
    beginning = 6 * PROMPTS[1]
    prompts = [f"{beginning} {PROMPTS[number % 3]} {number}" for number in range(4)]
    with opened(bundle, "cpu") as session:
        expected = [session.generate(prompt, **options).tokens for prompt in prompts]
        ids = [session.encode(prompt).tolist() for prompt in prompts]
    common = common_prefix(ids[0], ids[1])
    assert common == common_prefix(ids[1], ids[2]) == common_prefix(ids[2], ids[3]) > 64
    with Session.open(bundle, device="cpu", ctx_size=CONTEXT, sequences=3) as session:
        streams = [session.stream(prompt, **options) for prompt in prompts[:3]]
        while not all(stream.ended for stream in streams):
            session.scheduler.step()
        last = session.generate(prompts[3], **options)
        assert [*(stream.answer.tokens for stream in streams), last.tokens] == expected
        kept = [stream.answer.timings.prompt_kept for stream in streams]
        assert kept == [0, common, common]
        # The first prompt begins like the last one, up to its number, before which it has a snapshot of its own.
        assert last.timings.prompt_kept == common_prefix(ids[0], ids[3]) > common


@pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")
def test_snapshots_take_only_memory_that_is_left(bundle: Path) -> None:
    model = Bundle.open(bundle)
    free = make_plan(model, RunSettings(ctx_size=CONTEXT, threads=1))
    assert free.limits.snapshots == 2
    without = replace(free.limits, snapshots=0)
    bytes_of = partial(cpu_footprint, model, threads=1, result_rows=1)
    size = bytes_of(free.limits)["recurrent"] - bytes_of(without)["recurrent"]
    tight = make_plan(
        model, RunSettings(ctx_size=CONTEXT, threads=1, kv_bits=16, budget_bytes=free.plan.total_bytes - size)
    )
    assert (tight.limits.snapshots, tight.plan.ctx_size, tight.plan.pass_rows) == (0, CONTEXT, free.plan.pass_rows)
    assert make_plan(model, RunSettings(ctx_size=CONTEXT, threads=1, sequences=3)).limits.snapshots == 4


@pytest.mark.nightly(sample=2)
@pytest.mark.thorough
@pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")
def test_texts_together_share_slots_pause_and_go_on_from_the_disk(bundle: Path, tmp_path: Path) -> None:
    """Three texts at a time have five slots, so kept beginnings make room for new texts, by files on the disk."""
    options: dict[str, Any] = {"n_predict": 24, "sampling": SamplingConfig(temperature=0.8, seed=3), "ignore_eos": True}
    prompts = [5 * f"{prompt} {number} " for number in range(4) for prompt in PROMPTS[:2]]
    with opened(bundle, "cpu") as session:
        expected = [session.generate(prompt, **options).tokens for prompt in prompts]
        ids = [[*session.encode(prompt).tolist(), *tokens] for prompt, tokens in zip(prompts, expected, strict=True)]
        further = [session.generate(np.array([*text, 5], np.int32), **options).tokens for text in ids]
    with (
        SpillFolder(tmp_path, model="m") as disk,
        Session.open(bundle, device="cpu", ctx_size=CONTEXT, sequences=3) as session,
    ):
        session.memory.keep_on_disk(disk)
        assert isinstance(session.target, SlottedTarget)
        assert session.target.free_slots == 5
        streams = [session.stream(prompt, **options) for prompt in prompts]
        parked = 0
        while not all(stream.ended for stream in streams):
            session.scheduler.step()
            if not parked and len(session.scheduler.running) == 3:
                session.scheduler.park()
                parked = session.scheduler.parked
        assert parked == 1
        assert [stream.answer.tokens for stream in streams] == expected
        session.memory.move_to_disk()
        assert session.target.free_slots == 5
        for text, tokens in zip(ids, further, strict=True):
            answer = session.generate(np.array([*text, 5], np.int32), **options)
            assert answer.tokens == tokens
            assert answer.timings.prompt_kept == len(text) - 1
