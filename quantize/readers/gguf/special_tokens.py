"""Find the control tokens of a vocabulary and the ids that end a text, by their texts, as llama.cpp does.

Many files give control tokens the type of normal ones, or name only one of several tokens that end a text. llama.cpp
therefore knows such tokens by their texts. It looks for one text of each kind of ``_FOUND`` if no key names the token, and
in the order of a hash table; here the first id counts, and a note names the others.

Source: ``llama_vocab::impl::load`` of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from edgedec.quantize.readers.tokenizers.piece_tokenizer import PieceKind
from edgedec.quantize.readers.untrusted import shown

__all__ = ["ENDS", "SpecialTokens", "special_tokens"]

# Tokens that end a text, whatever the keys say.
ENDS = frozenset(
    {
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>"),
        *("<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<eos>"),
        *("<end_of_utterance>", "<turn|>", "<|tool_response>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "[e~["),
        "<|ifm|im_end|>",
    }
)
# Texts that stand for a key: prefixes, suffixes and middles of code, and three more that also end a text.
_FOUND: Mapping[str, tuple[str, ...]] = {
    "fim_pre_token_id": (
        *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<\uff5cfim\u2581begin\uff5c>", "<PRE>", "\u2581<PRE>"),
        *("<|code_prefix|>", "<|prefix|>", "<|plamo:fim_prefix|>"),
    ),
    "fim_suf_token_id": (
        *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<\uff5cfim\u2581hole\uff5c>", "<SUF>", "\u2581<SUF>"),
        *("<|code_suffix|>", "<|suffix|>", "<|plamo:fim_suffix|>"),
    ),
    "fim_mid_token_id": (
        *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<\uff5cfim\u2581end\uff5c>", "<MID>", "\u2581<MID>"),
        *("<|code_middle|>", "<|middle|>", "<|plamo:fim_middle|>"),
    ),
    "fim_pad_token_id": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep_token_id": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep_token_id": ("<|file_sep|>", "<|plamo:file_separator|>"),
}
_CODE_ENDS = ("fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id")
_NAMED_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Tokens of gpt-oss that are always part of the text, and whose neighbours change what "<|end|>" means.
_VISIBLE = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
_CALLS = frozenset({"<|call|>", "<|calls|>"})


@dataclass(kw_only=True)
class SpecialTokens:
    """The repaired types of all tokens, and the ids that end a text, the one of ``eos_token_id`` first."""

    kinds: list[PieceKind]
    ends: tuple[int, ...] = ()
    repaired: list[int] = field(default_factory=list)


def special_tokens(
    tokens: Sequence[str],
    kinds: Sequence[PieceKind],
    named: Mapping[str, int | None],
    note: Callable[[str], None],
) -> SpecialTokens:
    """Repair the types of well-known control tokens, and return them with the ids that end a text.

    ``named`` has the id of each key ``*_token_id``, or None if there is none. ``note`` takes what was repaired.
    """
    result = SpecialTokens(kinds=list(kinds))
    places = {text: at for at, text in enumerate(tokens)}
    ends = {named.get(key) for key in _CODE_ENDS}

    def control(at: int) -> None:
        if result.kinds[at] is not PieceKind.CONTROL:
            result.kinds[at] = PieceKind.CONTROL
            result.repaired.append(at)

    for key, texts in _FOUND.items():
        found = sorted(places[text] for text in texts if text in places)
        if found and named.get(key) is None:
            control(found[0])
            if key in _CODE_ENDS:
                ends.add(found[0])
            if len(found) > 1:
                others = ", ".join(shown(tokens[at]) for at in found[1:])
                note(f"{key} is missing, and {shown(tokens[found[0]])} is taken; {others} may be it, too")
    for text in ENDS & places.keys():
        control(places[text])
        ends.add(places[text])
    for text in _VISIBLE:
        if text in places:
            result.kinds[places[text]] = PieceKind.USER_DEFINED
    ends |= {named.get(key) for key in _NAMED_ENDS}
    left = {at for at in ends if at is not None}
    _remove(result, left, tokens, places)
    first = [named.get(key) for key in _NAMED_ENDS]
    result.ends = tuple(dict.fromkeys(at for at in (*first, *sorted(left)) if at in left))
    if repaired := [at for at in sorted(result.repaired) if result.kinds[at] is PieceKind.CONTROL]:
        names = ", ".join(shown(tokens[at]) for at in repaired)
        note(f"token_type has another type than control tokens' for {names}; they are read as control tokens")
    return result


def _remove(result: SpecialTokens, ends: set[int], tokens: Sequence[str], places: Mapping[str, int]) -> None:
    """Take out the ends that are none beside others: "<|end|>" of gpt-oss, and "</s>" of Gemma 4 and PLaMo."""
    texts = {tokens[at] for at in ends}
    if "<|end|>" in texts and texts & _CALLS and ("<|return|>" in texts or "<|flush|>" in texts):
        ends.discard(places["<|end|>"])
        result.kinds[places["<|end|>"]] = PieceKind.USER_DEFINED
    if "</s>" in texts and texts & {"<|tool_response>", "<|plamo:eos|>"}:
        ends.discard(places["</s>"])
        result.kinds[places["</s>"]] = PieceKind.NORMAL
