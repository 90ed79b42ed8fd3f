from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as HfTokenizer

from edgedec.errors import UnsupportedError, UsageError
from edgedec.runtime.text.stream import TextStream, token_bytes
from edgedec.runtime.text.tokenizer import Tokenizer

EMOJI = "😀".encode()


def byte_level() -> Tokenizer:
    """Return a tokenizer of 256 bytes, tokens of several bytes, some ending inside a character, an added and a special
    token.
    """
    byte_of = {bytes([b]): char for b, char in zip(range(256), gpt2_alphabet(), strict=True)}
    spelled = [b"he", b"ell", "é".encode() + b"\xf0", b"\x9f\x98", b"\x80a", b" a", EMOJI, b"\xff\xff", b"hello"]
    vocab = {char: b[0] for b, char in byte_of.items()}
    vocab |= {"".join(byte_of[bytes([b])] for b in raw): 256 + i for i, raw in enumerate(spelled)}
    tokenizer = HfTokenizer(models.BPE(vocab, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text) for text in ("<s>", "<think>", "</think>")])
    tokenizer.add_tokens([AddedToken("→ tool")])
    return Tokenizer(tokenizer.to_str())


def gpt2_alphabet() -> list[str]:
    """Spell byte b by entry b, according to the library and not to the code under test."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    spelling: dict[int, str] = {}
    codes = [*range(0xC0), *range(0xC0, 0x800, 0x20), *range(0x800, 0x10000, 0x800), *range(0x10000, 0x110000, 0x10000)]
    for code in codes:
        if not 0xD800 <= code < 0xE000:
            raw = chr(code).encode()
            spelling |= zip(raw, split.pre_tokenize_str(chr(code))[0][0], strict=True)
    # UTF-8 never holds C0, C1 and F5 to FF; their letters are the remaining ones of the alphabet, in order.
    remaining = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(spelling.values()))
    spelling |= zip([b for b in range(256) if b not in spelling], remaining, strict=True)
    return [spelling[b] for b in range(256)]


def byte_fallback(strip: bool = True) -> Tokenizer:
    """Return the SentencePiece decoder of Llama 2, or that of Gemma, which strips nothing."""
    vocab = {f"<0x{b:02X}>": b for b in range(256)}
    words = ["▁", "▁a", "a", "▁▁", "he", "llo", "é", "", "\ufffd", "▁<0x41>"]
    vocab |= {word: 256 + i for i, word in enumerate(words)}
    tokenizer = HfTokenizer(models.BPE(vocab, [], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    tokenizer.add_special_tokens([AddedToken(text) for text in ("<s>", "<think>", "</think>")])
    tokenizer.add_tokens([AddedToken("→ tool")])
    return Tokenizer(tokenizer.to_str())


def words(decoder: decoders.Decoder | None) -> Tokenizer:
    vocab = {word: i for i, word in enumerate(["▁a", "▁", "b", "", "c▁d"])}
    tokenizer = HfTokenizer(models.WordLevel(vocab, unk_token="b"))
    if decoder is not None:
        tokenizer.decoder = decoder
    return Tokenizer(tokenizer.to_str())


BYTES = byte_level()
FALLBACK = byte_fallback()
TOKENIZERS = {
    "byte-level": BYTES,
    "byte-fallback": FALLBACK,
    "byte-fallback, nothing stripped": byte_fallback(strip=False),
    "metaspace": words(decoders.Metaspace()),
    "no decoder": words(None),
}


def ids_of(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    any_id = st.integers(0, tokenizer.size + 1)  # two ids past the last token
    if tokenizer.size < 256:
        return st.lists(any_id, max_size=12)
    words = st.integers(256, tokenizer.size - 1)
    pieces = st.sampled_from(
        [b"hello", b" a", EMOJI, "é".encode(), EMOJI[:2], EMOJI[2:], b"\x80", b"\xff", b"\xe2\x82"]
    )
    runs = pieces.map(list) | words.map(lambda i: [i]) | any_id.map(lambda i: [i])
    return st.lists(runs, max_size=12).map(lambda lists: [i for part in lists for i in part])


def stream_all(tokenizer: Tokenizer, ids: Sequence[int], stop: Sequence[str] = (), context: Sequence[int] = ()) -> str:
    stream = TextStream(tokenizer, stop, context)
    return "".join([*(stream.feed(i) for i in ids), stream.finish()])


@cache
def is_incomplete(tail: bytes) -> bool:
    """Return whether some more bytes make it one character."""
    for length in (1, 2, 3):
        for end in product([0x80, 0x8F, 0x90, 0xA0, 0xBF], repeat=length):
            try:
                if len((tail + bytes(end)).decode()) == 1:
                    return True
            except UnicodeDecodeError:
                pass
    return False


def cut_off(raw: bytes) -> int:
    return next((n for n in (3, 2, 1) if len(raw) >= n and is_incomplete(raw[-n:])), 0)


def expected(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return ``decode`` without a character that the end cuts in the middle."""
    visible = [i for i in ids if tokenizer.token_of(i) is not None and not tokenizer.is_special(i)]
    if tokenizer is BYTES:
        spelling = {char: b for b, char in enumerate(gpt2_alphabet())}
        raw = b"".join(
            bytes(spelling[c] for c in token) if set(token) <= set(spelling) else token.encode()
            for token in (tokenizer.token_of(i) or "" for i in visible)
        )
        text = tokenizer.decode(visible)
        return text[:-1] if cut_off(raw) else text
    run: list[int] = []
    for i in reversed(visible):
        if i > 255 or tokenizer.size < 256:
            break
        run.insert(0, i)
    return tokenizer.decode(visible[: len(visible) - cut_off(bytes(run))])


@pytest.mark.parametrize("name", ["byte-level", "byte-fallback"])
def test_tags_of_reasoning_are_text_even_if_the_tokenizer_calls_them_special(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    names = ["<s>", "<think>", "a", "</think>", "a"] if name == "byte-fallback" else ["<s>", "<think>", "</think>"]
    ids = [one for text in names if (one := tokenizer.id_of(text)) is not None]
    text = "".join(names).removeprefix("<s>")
    assert len(ids) == len(names)
    assert tokenizer.decode(ids) == text
    assert stream_all(tokenizer, ids) == text
    assert b"".join(token_bytes(tokenizer, ids)).decode() == text


def cut_at_stop(text: str, stop: Sequence[str]) -> str:
    for end in range(1, len(text) + 1):
        endings = [s for s in stop if text[:end].endswith(s)]
        if endings:
            return text[: end - max(map(len, endings))]
    return text


@pytest.mark.thorough
@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
@settings(max_examples=150)
@given(data=st.data())
def test_the_stream_equals_decode_cut_at_the_first_stop(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(ids_of(tokenizer))
    stop = data.draw(st.lists(st.text("helo a😀b\ufffd", min_size=1, max_size=4), max_size=3))
    assert stream_all(tokenizer, ids, stop) == cut_at_stop(expected(tokenizer, ids), stop)


@pytest.mark.thorough
@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
@settings(max_examples=100)
@given(data=st.data())
def test_a_continuation_prints_what_follows_the_prompt(tokenizer: Tokenizer, data: st.DataObject) -> None:
    prompt, ids = data.draw(ids_of(tokenizer)), data.draw(ids_of(tokenizer))
    whole, before = expected(tokenizer, prompt + ids), tokenizer.decode(prompt)
    # Elsewhere the seam is inside a character or a run of bytes; see the examples below.
    assume(whole.startswith(before) and expected(tokenizer, prompt) == before)
    assert stream_all(tokenizer, ids, context=prompt) == whole[len(before) :]


@cache
def bytes_of(tokenizer: Tokenizer) -> list[bytes]:
    return token_bytes(tokenizer)


@pytest.mark.nightly(sample=2)
@pytest.mark.thorough
@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
@settings(max_examples=150)
@given(data=st.data())
def test_the_bytes_of_tokens_are_the_bytes_of_the_text(tokenizer: Tokenizer, data: st.DataObject) -> None:
    spelled = bytes_of(tokenizer)
    assert len(spelled) == tokenizer.size
    # A token without a text that is not special divides a run of byte tokens, so it may divide a character.
    ids = [token_id for token_id in data.draw(ids_of(tokenizer)) if token_id < len(spelled) and spelled[token_id]]
    raw = b"".join(spelled[token_id] for token_id in ids)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        assume(False)
    before = [next(token_id for token_id, one in enumerate(spelled) if one.strip().isascii() and one.strip())]
    assert stream_all(tokenizer, ids, context=before) == text


@pytest.mark.thorough
@given(ids_of(BYTES))
def test_whole_characters_are_printed_at_once(ids: list[int]) -> None:
    stream = TextStream(BYTES)
    text = ""
    for n, token_id in enumerate(ids, 1):
        text += stream.feed(token_id)
        assert text == expected(BYTES, ids[:n])


def test_an_emoji_over_several_tokens_is_printed_when_it_is_whole() -> None:
    stream = TextStream(BYTES)
    assert [stream.feed(b) for b in EMOJI] == ["", "", "", "😀"]
    stream = TextStream(FALLBACK)
    assert [stream.feed(b) for b in EMOJI] == [""] * 4
    assert stream.feed(256) == "😀 "


def test_a_cut_off_character_is_dropped_and_an_invalid_one_is_replaced() -> None:
    for tokenizer in (BYTES, FALLBACK):
        assert stream_all(tokenizer, [*b"ab", *EMOJI[:3]]) == "ab"
        assert stream_all(tokenizer, [*EMOJI, *EMOJI[:1]]) == "😀"
        assert stream_all(tokenizer, [0xED, 0xA0]) == "\ufffd\ufffd"  # half a surrogate, which nothing can complete
    assert stream_all(BYTES, [*b"a", *EMOJI[:3], *b"b"]) == "a\ufffdb"
    assert stream_all(FALLBACK, [*b"a", *EMOJI[:3], *b"b"]) == "\ufffd" * 5  # the decoder's text for such a run


@pytest.mark.parametrize("tokenizer", [BYTES, FALLBACK], ids=["byte-level", "byte-fallback"])
def test_a_character_split_between_prompt_and_answer_is_printed_whole(tokenizer: Tokenizer) -> None:
    assert stream_all(tokenizer, [*EMOJI[2:], *b"b"], context=[*b"a", *EMOJI[:2]]) == "😀b"
    assert stream_all(tokenizer, [*b"b"], context=[*b"a", *EMOJI]) == "b"
    assert stream_all(tokenizer, [], context=[*b"a", *EMOJI]) == ""
    assert stream_all(tokenizer, [], context=[*b"a", *EMOJI[:2]]) == ""


def test_a_byte_run_over_the_seam_prints_only_the_answers_part() -> None:
    assert stream_all(FALLBACK, [258], context=[*EMOJI]) == "a"
    assert stream_all(FALLBACK, [*b" x"], context=[*b" "]) == " x"  # the stripped space belongs to the prompt
    assert stream_all(FALLBACK, [0xFF, 258], context=[*EMOJI]) == "\ufffda"


def test_the_leading_space_is_kept_after_a_prompt_and_dropped_at_the_start() -> None:
    assert stream_all(FALLBACK, [257]) == "a"
    assert stream_all(FALLBACK, [257], context=[266]) == "a"  # a BOS is no text
    assert stream_all(FALLBACK, [257], context=[260]) == " a"


def test_a_stop_string_is_not_printed() -> None:
    stream = TextStream(BYTES, ["hello"])
    fed = [(stream.feed(b), stream.stopped) for b in b"hehell"]
    assert fed == [("", False), ("", False), ("he", False), ("", False), ("", False), ("", False)]
    assert stream.feed(ord("o")) == ""
    assert stream.stopped
    assert stream.feed(ord("x")) == ""
    assert stream.finish() == ""


def test_the_beginning_of_a_stop_string_is_printed_in_the_end() -> None:
    stream = TextStream(BYTES, ["hello", "lp"])
    assert "".join(stream.feed(b) for b in b"ahel") == "a"
    assert stream.finish() == "hel"
    assert not stream.stopped


def test_the_stop_that_completes_first_wins_for_any_split_of_the_text() -> None:
    assert stream_all(BYTES, [*b"xhello"], ["hello", "e"]) == "xh"
    assert stream_all(BYTES, [ord("x"), ord("h"), 257, ord("o")], ["hello", "e"]) == "xh"
    assert stream_all(BYTES, [ord("x"), 264], ["hello", "e"]) == "xh"
    assert stream_all(BYTES, [*b"xhello"], ["llo", "hello"]) == "x"


def test_special_tokens_and_ids_without_a_token_print_nothing() -> None:
    for tokenizer, special in ((BYTES, BYTES.id_of("<s>")), (FALLBACK, FALLBACK.id_of("<s>"))):
        assert special is not None
        assert stream_all(tokenizer, [special, ord("a"), 5000, special, ord("b")]) == "ab"


@pytest.mark.parametrize("run", [1, 40])
def test_the_cost_of_a_token_does_not_grow_with_the_text(monkeypatch: pytest.MonkeyPatch, run: int) -> None:
    decoded: list[int] = []
    decode = Tokenizer.decode

    def counting(self: Tokenizer, ids: Sequence[int]) -> str:
        decoded.append(len(ids))
        return decode(self, ids)

    monkeypatch.setattr(Tokenizer, "decode", counting)
    ids = ([65] * run + [257, 263]) * 50
    stream_all(FALLBACK, ids, ["zzz"])
    assert sum(decoded) <= 5 * len(ids)


def test_invalid_stops_and_decoders_are_refused() -> None:
    with pytest.raises(UsageError, match="a stop string is empty"):
        TextStream(BYTES, ["a", ""])
    with pytest.raises(UnsupportedError, match=r"decoder \(WordPiece\) cannot be followed token by token"):
        TextStream(words(decoders.WordPiece()))
    with pytest.raises(UnsupportedError, match=r"Fuse, Replace"):
        TextStream(words(decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "c")])))


@pytest.mark.thorough
def test_a_real_tokenizer_streams_its_text(shared_data: Path) -> None:
    path = shared_data / "tokenizers" / "phi-2" / "tokenizer.json"
    if not path.exists():
        pytest.skip("phi-2's tokenizer is not among the shared data")
    phi = Tokenizer.load(path)
    text = "Once upon a time, 😀👩‍👩‍👧 été 中文字 \u00a0 x\n\n\tdef f(): 🏳️‍🌈"
    assert stream_all(phi, phi.encode(text).tolist()) == text
    assert stream_all(phi, phi.encode(", there").tolist(), context=phi.encode("Once upon a time").tolist()) == ", there"

    @settings(max_examples=100)
    @given(st.lists(st.integers(0, phi.size), max_size=20))
    def check(ids: list[int]) -> None:
        end = phi.encode("!").tolist()  # text after which no character is cut off
        assert stream_all(phi, ids + end) == phi.decode(ids + end)

    check()
