"""Test the texts of a calibration: their marked rows can be told from what stands further back, and only from that."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.quantize.demo_pair.data import HELD_OUT_SEED
from edgedec.quantize.demo_pair.recall import look_back
from edgedec.quantize.demo_pair.world import tale
from edgedec.quantize.kv_calibration.texts import recall_texts
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from tests.conformance.test_targets import CONFIG


@pytest.fixture(scope="module")
def random_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path = tmp_path_factory.mktemp("bundles") / "random"
    write_random_bundle(path, CONFIG, method="ternary")
    return Bundle.open(path)


@settings(max_examples=30, deadline=None)
@given(length=st.integers(64, 1500), seed=st.integers(0, 9), step=st.integers(0, 3))
def test_a_key_comes_again(random_bundle: Bundle, length: int, seed: int, step: int) -> None:
    text = recall_texts(random_bundle, length, seed)(step)
    assert len(text.ids) == length
    assert len(text.rows) > 0
    assert text.rows.max() < length - 1
    ids = text.ids.tolist()
    for row in text.rows.tolist():
        before = ids[row - 2 : row + 2]  # two tokens of the key, this one, and the one that is recalled
        found = [at for at in range(length - 4) if ids[at : at + 4] == before]
        assert any(at + 4 <= text.rows[0] - 3 for at in found)


def test_a_text_depends_on_seed_and_step_alone(random_bundle: Bundle) -> None:
    texts = [recall_texts(random_bundle, 256, seed)(step).ids for seed in (0, 1) for step in (0, 1)]
    assert np.array_equal(texts[0], recall_texts(random_bundle, 256, 0)(0).ids)
    assert len({text.tobytes() for text in texts}) == 4


def test_the_embedded_pair_is_asked_about_its_stories() -> None:
    bundle = Bundle.open(demo.bundle_path())
    tokenizer = Tokenizer.from_file(str(bundle.tokenizer_file))
    for step in range(3):
        text = recall_texts(bundle, 1024, 0)(step)
        assert len(text.ids) <= 1024
        said = tokenizer.decode(text.ids[: text.rows[0]].tolist(), skip_special_tokens=False)
        runs = np.split(text.rows, np.flatnonzero(np.diff(text.rows) > 1) + 1)
        for run in runs:
            answer = tokenizer.decode(text.ids[run + 1].tolist(), skip_special_tokens=False)
            assert answer.endswith("</s>")
            assert answer not in said
        assert said.count("<|user|>") >= 2


def test_a_text_that_is_shorter_than_a_story_has_keys() -> None:
    text = recall_texts(Bundle.open(demo.bundle_path()), 64, 0)(0)
    assert (len(text.ids), len(text.rows) > 0) == (64, True)


def test_all_questions_are_about_the_last_story() -> None:
    talk = look_back(HELD_OUT_SEED, lambda turns: len(turns) >= 3)
    told = tale(HELD_OUT_SEED * 4096)
    assert len(talk.turns) == 4
    assert talk.turns[-1][1] == told.text
    assert sorted(one.question for one in talk.questions) == sorted(one.question for one in told.questions)
    assert talk == look_back(HELD_OUT_SEED, lambda turns: len(turns) >= 3)
    assert len(look_back(HELD_OUT_SEED, lambda turns: True).turns) == 1
