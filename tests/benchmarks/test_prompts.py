"""Test ``prompts.py``: every kind exists with and without the shared data, and copying tasks are copied."""

from __future__ import annotations

import gzip
import importlib.util
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec import demo
from edgedec.errors import UsageError
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session

P = importlib.import_module("benchmarks.support.prompts")
KINDS = {"story", "question", "copying", "code", "multi-turn", "summary"}


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """Write a data folder with a few lines of each file."""
    spec = [
        {"category": kind, "turns": [f"{kind} {at}?"]} for kind in ("qa", "rag", "summarization") for at in range(3)
    ]
    lines: dict[str, list[dict[str, Any]]] = {
        "gsm8k_train.jsonl": [{"question": f"sum {at}?", "answer": "1"} for at in range(9)],
        "mt_bench_question.jsonl": [{"turns": [f"first {at}", f"second {at}"]} for at in range(2)],
        "spec_bench_question.jsonl": spec,
    }
    for name, rows in lines.items():
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    with gzip.open(tmp_path / "HumanEval.jsonl.gz", "wt") as file:
        file.write(json.dumps({"prompt": "def f():\n"}) + "\n")
    return tmp_path


def test_files_give_their_kinds_unchanged(few: Path) -> None:
    by_kind: dict[str, list[Any]] = {}
    for prompt in P.read_prompts(few, 100):
        by_kind.setdefault(prompt.kind, []).append(prompt)
    assert set(by_kind) == KINDS
    assert [prompt.turns for prompt in by_kind["code"]] == [("def f():\n",)]
    assert [prompt.turns for prompt in by_kind["multi-turn"]] == [("first 0", "second 0"), ("first 1", "second 1")]
    assert [prompt.turns for prompt in by_kind["summary"]] == [(f"summarization {at}?\n",) for at in range(3)]
    questions = [prompt.turns[0] for prompt in by_kind["question"]]
    assert questions == ["qa 0?\n", "qa 1?\n", "qa 2?\n", "sum 0?\n", "sum 3?\n", "sum 6?\n"]
    assert by_kind["question"][-1].source == "gsm8k_train.jsonl:7"
    assert by_kind["story"][0].turns == (" ".join(demo.HELD_OUT.read_text("utf-8").split(" ")[:8]),)


@pytest.mark.parametrize("missing", ["gsm8k_train.jsonl", "spec_bench_question.jsonl", "HumanEval.jsonl.gz", "all"])
def test_a_missing_file_is_replaced(few: Path, missing: str) -> None:
    if missing != "all":
        (few / missing).unlink()
    counts = Counter(prompt.kind for prompt in P.read_prompts(None if missing == "all" else few, 5))
    assert set(counts) == KINDS
    assert all(1 <= count <= 5 for count in counts.values())
    if missing == "all":
        assert set(counts.values()) == {5}


def test_the_shared_files_have_enough(shared_data: Path) -> None:
    prompts = P.read_prompts(shared_data / "prompts", 40)
    assert Counter(prompt.kind for prompt in prompts) == dict.fromkeys(KINDS, 40)
    assert prompts == P.read_prompts(shared_data / "prompts", 40)
    assert len({(prompt.kind, prompt.source) for prompt in prompts}) == 240
    sources = Counter(prompt.source.partition(":")[0] for prompt in prompts if prompt.kind == "question")
    assert sources == {"gsm8k_train.jsonl": 20, "spec_bench_question.jsonl": 20}
    assert all(len(prompt.turns) == 2 for prompt in prompts if prompt.kind == "multi-turn")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("gsm8k_train.jsonl", b'{"question": "a"}\n{"quest', r"gsm8k_train\.jsonl: .*after line 1; copy"),
        ("gsm8k_train.jsonl", b'{"answer": "a"}\n', "line 1 must have question"),
        ("mt_bench_question.jsonl", b"[]\n", "line 1 must have turns"),
        ("spec_bench_question.jsonl", b"\xff\xfe\n", r"spec_bench_question\.jsonl: "),
        ("HumanEval.jsonl.gz", b"plain text", r"HumanEval\.jsonl\.gz: Not a gzipped file"),
        (
            "HumanEval.jsonl.gz",
            gzip.compress(b'{"prompt": "a"}\n' * 9, mtime=0)[:-9],
            r"HumanEval\.jsonl\.gz: Compressed file ended",
        ),
    ],
)
def test_damaged_files_are_named(few: Path, name: str, content: bytes, message: str) -> None:
    (few / name).write_bytes(content)
    with pytest.raises(UsageError, match=message):
        P.read_prompts(few, 3)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(2, 50), st.sampled_from([None, 0, 7]))
def test_cut_keeps_the_end_and_a_bos(given_ids: list[int], room: int, bos: int | None) -> None:
    ids = np.array(given_ids, np.int32)
    remaining = P.cut(ids, room, bos).tolist()
    assert len(remaining) == min(room, len(given_ids))
    if len(given_ids) > room and given_ids[0] == bos:
        assert remaining == [bos, *given_ids[len(given_ids) - room + 1 :]]
    else:
        assert remaining == given_ids[len(given_ids) - len(remaining) :]


def test_a_cut_without_room_is_refused() -> None:
    with pytest.raises(UsageError, match="needs room for 2 tokens, not 1; raise --ctx-size"):
        P.cut(np.arange(5, dtype=np.int32), 1, 0)


def test_shares_count_four_token_sequences() -> None:
    assert P.copied_share([1, 2, 3, 4, 5], [9, 1, 2, 3, 4]) == 0.5
    assert P.copied_share([1, 2, 3, 4], []) == 0.0
    assert P.copied_share([1, 2, 3], [1, 2, 3]) == 0.0
    assert P.copied_share([1, 2, 3, 4, 4], [0, 1, 2, 3, 4, 4]) == 1.0
    assert P.repeated_share("a b c d, a b c d!") == pytest.approx(1 / 5)


def test_a_retelling_repeats_the_beginning() -> None:
    assert P.retelling("a b c d e f g h") == "a b c d e f g h\n\na b"
    assert P.retelling("word") == "word\n\nword"


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        with Session.open(demo.bundle_path(), ctx_size=1024, threads=1) as opened:
            yield opened


def continued(session: Session, ids: Any, tokens: int) -> Any:
    return session.generate(ids, n_predict=tokens, sampling=SamplingConfig(temperature=0))


@pytest.mark.thorough
def test_the_embedded_model_copies_on_copying_tasks(session: Session) -> None:
    copied: dict[str, list[float]] = {"copying": [], "story": []}
    for prompt in P.read_prompts(None, 4):
        if prompt.kind in copied:
            ids = P.prepare(session, prompt, 64)
            answer = continued(session, ids, 64)
            assert P.repeated_share(answer.text) <= P.LOOPS_FROM
            copied[prompt.kind].append(P.copied_share(answer.tokens, ids))
    assert np.mean(copied["copying"]) > 0.6
    assert np.mean(copied["story"]) < 0.05


@pytest.mark.thorough
@pytest.mark.parametrize("positions", [64, 1024])
def test_prompts_leave_room_in_the_context(session: Session, positions: int) -> None:
    with Session.open(session.bundle.path, ctx_size=positions, threads=1) as opened:
        for prompt in P.read_prompts(P.shared_prompts(), 1):
            ids = P.prepare(opened, prompt, 40)
            assert ids.dtype == np.int32
            assert 2 <= len(ids) <= positions - 40
            assert ids[0] == opened.bundle.tokens.bos
            assert len(continued(opened, ids, 40).tokens) >= 1
        with pytest.raises(UsageError, match="needs room for 2 tokens"):
            P.prepare(opened, prompt, positions)


@pytest.mark.thorough
def test_later_turns_follow_the_answers_to_earlier_ones(session: Session) -> None:
    prompt = P.Prompt(kind="multi-turn", source="here", turns=("Once upon a time", "What then?"))
    text = session.tokenizer.decode(P.prepare(session, prompt, 40))
    first, _, remainder = text.partition("\n")
    assert first.endswith("Once upon a time")
    assert remainder.endswith("\n\nWhat then?\n")
    assert len(remainder.split()) > 10
