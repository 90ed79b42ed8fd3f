"""Test that a session that keeps rows on the disk writes the same texts, and reads fewer rows after it was opened again."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.runtime.engine.spill import SpillFolder
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from tests.conformance.test_targets import CONFIG
from tests.edgedec.cli.support.make_known_model import byte_tokenizer

pytestmark = pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)")

PROMPTS = [f"{name} went into the wood and {'looked for berries, ' * 5}" for name in ("Anna", "Ben", "Cleo", "Dan")]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundles") / "b"
    config = CONFIG | {"vocab_size": 264, "max_position_embeddings": 256}
    write_random_bundle(path, config, "int8", tokenizer_json=byte_tokenizer().to_str())
    return path


def written(session: Session, prompt: str) -> tuple[list[int], int]:
    """Return the tokens of an answer, and the number of rows of its prompt that were kept."""
    sampling = SamplingConfig(temperature=0.9, seed=3)
    answer = session.generate(prompt, n_predict=20, sampling=sampling, ignore_eos=True)
    return answer.tokens, answer.timings.prompt_kept


@pytest.mark.thorough
def test_texts_are_the_same_and_prompts_are_kept_over_an_unloading(path: Path, tmp_path: Path) -> None:
    with Session.open(path, threads=1, ctx_size=256) as session:
        expected = [written(session, prompt)[0] for prompt in PROMPTS]
    with SpillFolder(tmp_path, model="m") as disk:
        for opened in range(2):
            with Session.open(path, threads=1, ctx_size=256, sequences=2) as session:
                session.memory.keep_on_disk(disk)
                for prompt, tokens in zip(PROMPTS, expected, strict=True):
                    again, kept = written(session, prompt)
                    assert again == tokens
                    assert kept >= (100 if opened else 0)
                session.memory.move_to_disk()
                assert len(disk.files) >= len(PROMPTS)
    assert not any(path.is_dir() for path in tmp_path.iterdir())
