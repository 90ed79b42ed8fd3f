"""Test the texts on which tokenizers are compared, and the comparison."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from edgedec.same_tokens import TEXTS, Difference, added_texts, first_difference


def letters(unknown: str | None = None) -> Tokenizer:
    words = Tokenizer(models.WordLevel({"a": 0, "A": 1, "b": 2, "?": 3}, unk_token=unknown))
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return words


def test_there_are_many_texts_and_each_is_there_once() -> None:
    assert len(TEXTS) >= 200
    assert len(set(TEXTS)) == len(TEXTS)
    used = {byte for text in TEXTS for byte in text.encode()}
    assert used == set(range(256)) - {0xC0, 0xC1, *range(0xF5, 0x100)}  # all bytes that UTF-8 has


def test_the_texts_tell_normalizers_apart() -> None:
    plain = letters("?")
    for step in (
        normalizers.Lowercase(),
        normalizers.Strip(),
        normalizers.NFC(),
        normalizers.NFKC(),
        normalizers.NFD(),
    ):
        other = letters("?")
        other.normalizer = step
        assert first_difference(plain, plain, TEXTS) is None
        assert first_difference(plain, other, TEXTS) is not None


def test_texts_around_added_tokens_tell_their_flags_apart() -> None:
    plain, texts = letters("?"), []
    plain.add_special_tokens([AddedToken("<x>", normalized=False)])
    texts = added_texts(plain)
    for flag in ("lstrip", "rstrip", "single_word"):
        other = letters("?")
        other.add_special_tokens([AddedToken("<x>", normalized=False, **{flag: True})])
        assert first_difference(plain, other, texts) is not None


def test_a_text_that_is_refused_is_a_difference() -> None:
    assert first_difference(letters(), letters("?"), ["ab", "ax"]) == Difference("ax", None, [0, 3])
    assert first_difference(letters(), letters(), ["x"]) is None


def test_a_difference_is_one_line_that_begins_where_the_ids_do() -> None:
    found = Difference("\n" * 70, list(range(100)), [*range(40), 7])
    text = "'" + "\\n" * 57 + "'"
    ids = "[..., 38, 39, 7] instead of [..., 38, 39, 40, 41, 42, 43, 44, 45, ...]"
    assert str(found) == f"{text}... would be {ids}"
    assert str(Difference("x", None, [3])) == "'x' would be [3] instead of refused"
