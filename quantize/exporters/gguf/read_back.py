"""Read a finished GGUF file, and compare its tokenizer with the bundle's by the ids of texts.

The reader is edgedec's own. What llama.cpp does otherwise is checked beside it: it looks for added tokens from the longest
to the shortest, and ``tokenizers`` from the left to the right.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from edgedec.bundle.bundle import Bundle
from edgedec.errors import UnsupportedError
from edgedec.quantize.exporters.gguf.tokenizer import UNDERLINE, keeps_spaces, likely_cause, with_llama_cpp_spaces
from edgedec.quantize.exporters.quiet_reader import read_quietly
from edgedec.quantize.readers.checkpoint import Checkpoint
from edgedec.quantize.readers.gguf.checkpoint import read_gguf
from edgedec.same_tokens import TEXTS, Difference, added_texts, first_difference

__all__ = ["check_read_back"]

log = logging.getLogger(__name__)

_RUN = 16  # neighbouring ids that are joined to one text


def check_read_back(bundle: Bundle, file: Path, *, their_spaces: bool = False) -> None:
    """Check that ``file``, as it is read, cuts texts as the bundle's tokenizer does and has its BOS, ends and chat template.

    Tokens that end a text in llama.cpp alone are named in a note, and so are ``their_spaces``: the spaces that llama.cpp
    adds where the tokenizer (Metaspace) adds none are accepted, and nothing else.

    Raises:
        UnsupportedError: something differs; the message names the text and both lists of ids.
    """
    read = read_quietly(read_gguf, file, f"{bundle.path}: its GGUF file")
    text = bundle.tokenizer_file.read_text("utf-8")
    if their_spaces and (with_theirs := with_llama_cpp_spaces(text)) != text:
        log.warning(
            "%s: llama.cpp adds a space before a text that begins with one, and after each control token, where the model's "
            "tokenizer adds none; such texts get other tokens there", bundle.path,
        )  # fmt: skip
        text = with_theirs
    ours, other = Tokenizer.from_str(text), Tokenizer.from_str(read.tokenizer_json)
    texts = [*TEXTS, *added_texts(ours)]
    if keeps_spaces(json.loads(bundle.tokenizer_file.read_bytes())):  # the difference that the exporter's note names
        texts = [text for text in texts if UNDERLINE not in text]
    difference = (
        first_difference(ours, other, texts)
        or first_difference(ours, other, _vocabulary_texts(ours), plain=True)
        or _order_difference(other)
    )
    if difference is not None:
        raise UnsupportedError(
            f"{bundle.path}: its tokenizer cannot be written as GGUF: {difference}; {likely_cause(bundle)}; export it "
            "as safetensors"
        )
    _check_special(bundle, read)


def _vocabulary_texts(words: Tokenizer) -> Iterator[str]:
    """Yield the text of each token and of runs of tokens, without tokens that are a part of a character."""
    ids = sorted(words.get_vocab(with_added_tokens=False).values())
    runs = [ids[at : at + _RUN] for at in range(0, len(ids), _RUN)]
    runs += [ids[at :: len(runs)][:_RUN] for at in range(len(runs))]
    for some in [[one] for one in ids] + runs:
        text = words.decode(some, skip_special_tokens=False)
        if "\ufffd" not in text:
            yield text


def _order_difference(words: Tokenizer) -> Difference | None:
    """Return a text in which added tokens overlap and llama.cpp finds others, or None."""
    tokens = [added.content for _, added in sorted(words.get_added_tokens_decoder().items())]
    tokens.sort(key=lambda token: -len(token.encode()))  # stable
    begins: dict[str, list[str]] = {}
    for token in tokens:
        for cut in range(1, len(token)):
            begins.setdefault(token[:cut], []).append(token)
    for token in tokens:
        for cut in range(1, len(token)):
            for longer in begins.get(token[cut:], ()):
                text = token + longer[len(token) - cut :]
                ids, theirs = words.encode(text, add_special_tokens=False).ids, _longest_first(words, tokens, text)
                if ids != theirs:
                    return Difference(text, ids, theirs)
    return None


def _longest_first(words: Tokenizer, tokens: Sequence[str], text: str) -> list[int]:
    """Return the ids of a text in which each of ``tokens`` is looked for in what the ones before it have left."""
    parts: list[tuple[str, bool]] = [(text, False)]
    for token in tokens:
        cut: list[tuple[str, bool]] = []
        for part, found in parts:
            for at, rest in enumerate([part] if found else part.split(token)):
                cut += [(token, True)] * bool(at) + [(rest, found)] * bool(rest)
        parts = cut
    return [one for part, _ in parts for one in words.encode(part, add_special_tokens=False).ids]


def _check_special(bundle: Bundle, read: Checkpoint) -> None:
    tokens, words = bundle.tokens, Tokenizer.from_str(read.tokenizer_json)
    if tokens.bos is not None and read.bos_token_id != tokens.bos:
        raise UnsupportedError(f"{bundle.path}: its BOS {tokens.bos} would be {read.bos_token_id} in a GGUF")
    if lost := [token for token in tokens.eos if token not in read.eos_token_ids]:
        raise UnsupportedError(
            f"{bundle.path}: {len(tokens.eos)} tokens end its texts, and a GGUF names three; {words.id_to_token(lost[0])!r} "
            "would be lost; export it as safetensors"
        )
    if more := [token for token in read.eos_token_ids if token not in tokens.eos]:
        names = ", ".join(repr(words.id_to_token(token)) for token in more)
        log.warning("%s: in llama.cpp a text also ends at %s, and in this model it does not", bundle.path, names)
    if read.chat_template != bundle.chat_template:
        raise UnsupportedError(f"{bundle.path}: its chat template would be another one in a GGUF")
