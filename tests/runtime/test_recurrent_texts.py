"""Write texts with models whose states do not grow: a guess changes none, and a conversation goes on or begins again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec import demo
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.engine.spill import SpillFolder
from edgedec.runtime.kernels.operator import usable
from edgedec.runtime.protocols import SlottedTarget
from edgedec.runtime.sampling import SamplingConfig
from edgedec.runtime.session import Session
from edgedec.runtime.speculation import SpecConfig

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
    spec = SpecConfig(drafter=drafter, draft=draft, draft_max=5)
    return Session.open(bundle, device=device, ctx_size=CONTEXT, spec=spec)


@pytest.mark.thorough(sample=2)
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


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize("device", DEVICES)
def test_a_conversation_goes_on_and_a_shorter_beginning_runs_again(bundle: Path, device: str) -> None:
    """A prompt that continues the text keeps its rows, and one that leaves it earlier keeps none."""
    options: dict[str, Any] = {"sampling": SamplingConfig(temperature=0), "ignore_eos": True}
    with opened(bundle, device) as session:
        first = session.generate(PROMPTS[0], n_predict=12, **options)
        ids = [*session.tokenizer.encode(PROMPTS[0]), *first.tokens]
        for end, kept in ((len(ids), len(ids) - 1), (len(ids) - 3, 0), (5, 0)):
            prompt = np.array([*ids[:end], 9, 8, 7], np.int32)
            answer = session.generate(prompt, n_predict=6, **options)
            with opened(bundle, device) as fresh:
                assert answer.tokens == fresh.generate(prompt, n_predict=6, **options).tokens
            assert answer.timings.prompt_kept == kept
            ids = [*prompt.tolist(), *answer.tokens] if end == len(ids) else ids
            session.generate(np.array(ids, np.int32), n_predict=1, **options)


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
