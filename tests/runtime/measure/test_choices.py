"""Compare multiple choice with the score spelled out: each whole text from an empty cache, one token at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers
from tokenizers import Tokenizer as HfTokenizer

from edgedec.bundle.bundle import Bundle
from edgedec.errors import BundleError, DeviceError, EdgedecError, UsageError
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from edgedec.reference.float_profile.model import ReferenceModel
from edgedec.runtime.measure.choices import (
    ChoiceScore,
    EncodedItem,
    Item,
    check_lengths,
    encode_items,
    read_items,
    score_items,
    wilson,
)
from edgedec.runtime.measure.perplexity import log_likelihoods
from edgedec.runtime.model_graph import bundle_graph
from edgedec.runtime.protocols import Limits
from edgedec.runtime.targets import open_target
from edgedec.runtime.text.tokenizer import Tokenizer
from tests.runtime.measure.test_perplexity import CONFIG, TOKENIZER_SIZE, FixedTarget

BOS = 0
LETTERS = "ab c\n"


def tokenizer_of(merges: Sequence[tuple[str, str]]) -> Tokenizer:
    """Return byte-pair encoding over LETTERS without word boundaries; id 0 is BOS."""
    pieces = dict.fromkeys([*LETTERS, *("".join(pair) for pair in merges)])
    vocab = {piece: at for at, piece in enumerate(pieces, 1)}
    tokenizer = HfTokenizer(models.BPE({"<s>": BOS, **vocab}, list(merges)))
    tokenizer.add_special_tokens([AddedToken("<s>")])
    return Tokenizer(tokenizer.to_str())


# merges of every kind: inside words, over spaces, and of merged pieces
PAIRS = [("a", "b"), ("b", "c"), ("ab", "c"), (" ", "a"), ("c", " "), (" a", "b"), ("a", "a"), ("b", "b"), ("\n", "a")]
TOKENIZER = tokenizer_of(PAIRS)

texts = st.text(LETTERS, max_size=8)
questions = st.tuples(texts, st.lists(texts.filter(bool), min_size=2, max_size=4, unique=True)).map(
    lambda parts: Item(question=parts[0], choices=tuple(parts[1]), answer=0)
)


def ids_of(text: str, tokenizer: Tokenizer = TOKENIZER) -> list[int]:
    return [BOS, *tokenizer.encode(text, add_special=False).tolist()]


def encode(item: Item, tokenizer: Tokenizer = TOKENIZER, bos: int | None = BOS) -> EncodedItem:
    (entry,) = encode_items(tokenizer, [item], bos=bos, vocab_limit=TOKENIZER_SIZE)
    return entry


def longest_prefix(*rows: list[int]) -> list[int]:
    n = 0
    while all(len(row) > n and row[n] == rows[0][n] for row in rows):
        n += 1
    return rows[0][:n]


# The boundary


@pytest.mark.thorough
@given(item=questions, pairs=st.permutations(PAIRS).flatmap(lambda pairs: st.integers(0, 9).map(lambda n: pairs[:n])))
@settings(max_examples=200)
def test_texts_are_encoded_whole_and_cut_where_they_differ(item: Item, pairs: list[tuple[str, str]]) -> None:
    mergeable = {""} | set(LETTERS)
    usable = []
    for first, second in pairs:  # a merge needs its parts
        if first in mergeable and second in mergeable:
            usable.append((first, second))
            mergeable.add(first + second)
    tokenizer = tokenizer_of(usable)
    question = ids_of(item.question.rstrip(), tokenizer)
    whole = [ids_of(item.question + choice, tokenizer) for choice in item.choices]
    assume(all(longest_prefix(question, row) != row for row in whole))  # a choice without a token: tested below
    entry = encode(item, tokenizer)
    assert [[*entry.context.tolist(), *ids.tolist()] for ids in entry.choices] == whole
    assert entry.context.tolist() == longest_prefix(question, *whole)
    assert all(len(ids) for ids in entry.choices)
    assert entry.rows == max(map(len, whole)) - 1
    # no merge over the boundary: the same as lm-evaluation-harness
    if all(row[: len(question)] == question for row in whole):
        assert [ids.tolist() for ids in entry.choices] == [row[len(question) :] for row in whole]


def test_spaces_at_the_end_of_the_question_belong_to_the_choice() -> None:
    loose = encode(Item(question="c ", choices=("ab", "b"), answer=0), tokenizer := tokenizer_of([(" ", "a")]))
    tight = encode(Item(question="c", choices=(" ab", " b"), answer=0), tokenizer)
    assert loose.context.tolist() == tight.context.tolist() == ids_of("c", tokenizer)
    assert [ids.tolist() for ids in loose.choices] == [ids.tolist() for ids in tight.choices]
    assert loose.choices[0].tolist() == tokenizer.encode(" ab").tolist()


def test_a_merge_over_the_boundary_moves_it_for_every_choice() -> None:
    entry = encode(Item(question="ca", choices=("b", "c"), answer=0), tokenizer := tokenizer_of([("a", "b")]))
    assert entry.context.tolist() == ids_of("c", tokenizer)
    assert [ids.tolist() for ids in entry.choices] == [ids_of("ab", tokenizer)[1:], ids_of("ac", tokenizer)[1:]]


def test_a_bos_in_the_text_is_not_doubled() -> None:
    entry = encode(Item(question="<s>c", choices=("a", "b"), answer=0))
    assert entry.context.tolist() == ids_of("c")


def test_without_bos_the_question_must_have_a_token() -> None:
    assert encode(Item(question="c", choices=("a", "b"), answer=0), bos=None).context.tolist() == ids_of("c")[1:]
    for question in ("", " ", "a"):  # the last one because "a" and "b" merge
        with pytest.raises(
            UsageError, match="x: the choices have no common token before them, and the model has no BOS"
        ):
            encode(Item(question=question, choices=("b", "c"), answer=0, where="x"), bos=None)


def test_a_choice_without_a_token_is_an_error() -> None:
    tokenizer = HfTokenizer(models.BPE({"<s>": BOS, "a": 1, "b": 2}, []))  # other letters vanish
    for normalizer, choices in ((None, ("a", "é")), (normalizers.Strip(), ("a", " "))):
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        with pytest.raises(UsageError, match=r"x: choices\[1\] has no token"):
            encode(Item(question="b", choices=choices, answer=0, where="x"), Tokenizer(tokenizer.to_str()))


def test_ids_past_the_vocabulary_are_an_error() -> None:
    with pytest.raises(BundleError, match="they do not belong together"):
        encode_items(TOKENIZER, [Item(question="a", choices=("b", "c"), answer=0)], bos=BOS, vocab_limit=3)


# The score


@pytest.fixture(scope="module", params=["int8", "ternary"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path: Path = tmp_path_factory.mktemp("choices") / "bundle"
    write_random_bundle(path, CONFIG, request.param)
    return Bundle.open(path)


def slow_sum(model: ReferenceModel, ids: Sequence[int], start: int) -> float:
    """Return ln p of ids[start:] given those before."""
    total = 0.0
    for at in range(start, len(ids)):
        logits, _ = model.forward(np.array(ids[:at], np.int32), model.new_cache())
        row = [float(logit) for logit in logits[-1][:TOKENIZER_SIZE]]
        total += row[ids[at]] - math.log(sum(math.exp(logit) for logit in row))
    return total


@pytest.mark.thorough
@given(items=st.lists(questions, min_size=1, max_size=3), nodes=st.integers(1, 8))
@settings(max_examples=15)
def test_scores_equal_the_slow_computation(bundle: Bundle, items: list[Item], nodes: int) -> None:
    try:
        encoded = [encode(item) for item in items]
    except UsageError:
        assume(False)
    limits = Limits(nodes=nodes, depth=0, positions=32)
    target = open_target(bundle, device="float_reference", limits=limits)
    score = score_items(target, limits, TOKENIZER, items, bos=BOS, vocab_limit=TOKENIZER_SIZE)
    model = ReferenceModel(bundle_graph(bundle), bundle.weight)
    correct = correct_norm = 0
    for item, entry, actual in zip(items, encoded, score.log_likelihoods, strict=True):
        start = len(entry.context)
        sums = [slow_sum(model, ids_of(item.question + choice), start) for choice in item.choices]
        assert list(actual) == pytest.approx(sums, rel=1e-5, abs=1e-5)
        norms = [total / len(choice.encode()) for total, choice in zip(sums, item.choices, strict=True)]
        correct += sums[0] == max(sums)
        correct_norm += norms[0] == max(norms)
    assert (score.items, score.correct, score.correct_norm) == (len(items), correct, correct_norm)
    assert score.chance == pytest.approx(np.mean([1 / len(item.choices) for item in items]))


@pytest.mark.parametrize("device", ["cpu", "float_reference"])
def test_a_shared_context_gives_the_scores_of_separate_ones(bundle: Bundle, device: str) -> None:
    rng = np.random.default_rng(3)
    items = [
        Item(
            question="".join(rng.choice(list(LETTERS), 20)) + "c",
            choices=tuple(dict.fromkeys("".join(rng.choice(list("abc"), size)) for size in (1, 9, 4, 2))),
            answer=0,
        )
        for _ in range(4)
    ]
    limits = Limits(nodes=4, depth=0, positions=48)
    target = open_target(bundle, device=device, limits=limits)
    score = score_items(target, limits, TOKENIZER, items, bos=BOS, vocab_limit=TOKENIZER_SIZE)
    for item, actual in zip(items, score.log_likelihoods, strict=True):
        entry = encode(item)
        for ids, total in zip(entry.choices, actual, strict=True):
            whole = np.concatenate([entry.context, ids])
            state = target.open(limits)
            alone = log_likelihoods(target, state, limits, whole[:-1], whole[1:], vocab_limit=TOKENIZER_SIZE)
            state.close()
            assert total == pytest.approx(alone[len(entry.context) - 1 :].sum(), rel=1e-3)


def test_the_context_runs_once(bundle: Bundle) -> None:
    limits = Limits(nodes=3, depth=0, positions=32)
    target = open_target(bundle, device="float_reference", limits=limits)
    rows: list[int] = []
    submit = target.submit

    def counting(work):  # type: ignore[no-untyped-def]
        rows.extend(len(item.ids) for _, item in work)
        return submit(work)

    target.submit = counting  # type: ignore[method-assign]
    item = Item(question="cacbcac", choices=("c", "bab", "cacac"), answer=0)
    entry = encode(item)
    score_items(target, limits, TOKENIZER, [item], bos=BOS, vocab_limit=TOKENIZER_SIZE)
    assert sum(rows) == len(entry.context) + sum(len(ids) - 1 for ids in entry.choices)
    assert max(rows) <= limits.nodes


def score_fixed(row: Sequence[float], items: Sequence[Item], vocab_limit: int = 15) -> ChoiceScore:
    limits = Limits(nodes=4, depth=0, positions=16)
    target = FixedTarget(row)
    return score_items(target, limits, TOKENIZER, items, bos=BOS, vocab_limit=vocab_limit)  # type: ignore[arg-type]


UNIFORM = [0.0] * 15


def test_the_sum_prefers_fewer_tokens_and_the_norm_more_bytes() -> None:
    single, three = "abc", "aca"  # one token, three tokens
    for choices, right in (((single, three), 0), ((three, single), 1)):
        score = score_fixed(UNIFORM, [Item(question="c", choices=choices, answer=right)])
        assert (score.correct, score.correct_norm) == (1, 1)
    # One token of one byte, and three of four.
    score = score_fixed(UNIFORM, [Item(question="c", choices=("b", "ab c"), answer=1)])
    assert score.log_likelihoods[0] == pytest.approx((-math.log(15), -3 * math.log(15)))
    assert (score.correct, score.correct_norm) == (0, 1)


def test_the_first_of_equal_choices_is_taken() -> None:
    choices = ("b", "c", "a")
    for answer, right in ((0, 1), (1, 0), (2, 0)):
        score = score_fixed(UNIFORM, [Item(question="c", choices=choices, answer=answer)])
        assert (score.correct, score.correct_norm) == (right, right)


def test_categories_and_chance_are_reported() -> None:
    items = [
        Item(question="c", choices=("b", "c"), answer=0, category="z"),
        Item(question="c", choices=("b", "c", "a", "cc"), answer=1, category="y"),
        Item(question="c", choices=("b", "c", "a", "cc"), answer=0, category="z"),
        Item(question="c", choices=("b", "c"), answer=1),
    ]
    score = score_fixed(UNIFORM, items)
    assert (score.items, score.correct, score.chance) == (4, 2, 0.375)
    assert list(score.by_category) == ["z", "y"]
    assert [(t.items, t.correct, t.chance) for t in score.by_category.values()] == [(2, 2, 0.375), (1, 0, 0.25)]
    assert score.accuracy == score.accuracy_norm == 0.5
    assert score.interval == score.interval_norm == wilson(2, 4)


def test_padding_gets_no_probability() -> None:
    score = score_fixed([*UNIFORM, 50.0], [Item(question="c", choices=("b", "c"), answer=0)])
    assert score.log_likelihoods[0] == pytest.approx((-math.log(15),) * 2)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("choices", [("b", "c"), ("ab", "ac")])
def test_logits_that_are_not_finite_are_an_error(value: float, choices: tuple[str, str]) -> None:
    with pytest.raises(DeviceError, match="logits are not finite"):
        score_fixed([value] * 15, [Item(question="c", choices=choices, answer=0)])


def test_a_question_too_long_for_the_context_names_the_line_and_its_tokens() -> None:
    item = Item(question="cac" * 5, choices=("b", "cac"), answer=0, where="q.jsonl: line 7")
    entry = encode(item)
    check_lengths([entry], entry.rows)
    message = f"q.jsonl: line 7: the question and its longest choice have {entry.rows} tokens, the context holds 16"
    assert entry.rows == 18
    with pytest.raises(EdgedecError, match=message):
        score_fixed(UNIFORM, [item])


def test_progress_counts_questions() -> None:
    reports: list[tuple[str, int, int]] = []
    items = [Item(question="c", choices=("b", "c"), answer=0)] * 2
    score_items(
        FixedTarget(UNIFORM),  # type: ignore[arg-type]
        Limits(nodes=4, depth=0, positions=16),
        TOKENIZER,
        items,
        bos=BOS,
        vocab_limit=15,
        progress=lambda *report: reports.append(report),
    )
    assert reports == [("questions", 1, 2), ("questions", 2, 2)]


# Confidence interval


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    # Newcombe, Statistics in Medicine 17 (1998) 857, table I, method 3
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_the_interval_equals_published_examples(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson(successes, trials) == pytest.approx((low, high), abs=5e-5)
    assert wilson(trials - successes, trials) == pytest.approx((1 - high, 1 - low), abs=5e-5)


@given(trials=st.integers(1, 10**6), data=st.data())
def test_the_interval_holds_the_share_and_stays_in_range(trials: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, trials))
    low, high = wilson(successes, trials)
    assert 0 <= low <= successes / trials <= high <= 1


# File; tests/attacks/test_choices_file.py has what is refused


@pytest.mark.thorough
@given(items=st.lists(st.tuples(st.text(), st.lists(st.text(min_size=1), min_size=2, max_size=26, unique=True))))
def test_written_items_are_read(tmp_path_factory: pytest.TempPathFactory, items: list[tuple[str, list[str]]]) -> None:
    lines = [
        json.dumps({"question": question, "choices": choices, "answer": len(choices) - 1}, ensure_ascii=at % 2 == 0)
        for at, (question, choices) in enumerate(items)
    ]
    file = tmp_path_factory.getbasetemp() / "written.jsonl"
    file.write_bytes("\n\n".join(["", *lines]).encode())
    if not items:
        with pytest.raises(UsageError, match="has no question"):
            read_items(file)
        return
    read_back = read_items(file)
    assert [(item.question, list(item.choices)) for item in read_back] == items
    assert [item.where for item in read_back] == [f"{file}: line {2 * at + 3}" for at in range(len(items))]


def test_line_ends_and_optional_keys_are_read(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    line = '{"id": "%s", "category": "x", "question": "q\u2028", "choices": ["a", "b"], "answer": 1}'
    file.write_bytes("\r\n".join([line % "1", " \t", line % "2"]).encode())
    first, second = read_items(file)
    assert (first.id, first.category, first.question, second.id) == ("1", "x", "q\u2028", "2")
    assert second.where == f"{file}: line 3"


def test_arguments_of_the_library_are_checked_too() -> None:
    with pytest.raises(UsageError, match="the question: answer must be the index of a choice, 0 to 1, not 2"):
        Item(question="", choices=("a", "b"), answer=2)


def test_ids_are_int32() -> None:
    entry = encode(Item(question="c", choices=("a", "b"), answer=0))
    assert {entry.context.dtype, *(ids.dtype for ids in entry.choices)} == {np.dtype(np.int32)}
