"""Read what the side files of a tokenizer say of its tokens: ``tokenizer_config.json`` and two older files.

``special_tokens_map.json`` and ``added_tokens.json`` are read only if ``tokenizer_config.json`` has no
``added_tokens_decoder``, as in transformers.

Source: ``tokenization_utils_base.py`` of transformers 5.24.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from edgedec.errors import BundleError, UnsupportedError
from edgedec.quantize.readers.untrusted import member, printable, read_object, shown

__all__ = [
    "CONFIG",
    "IGNORED_KEYS",
    "NAMES",
    "NOT_FOR_BPE",
    "REFUSED_KEYS",
    "USED_KEYS",
    "TokenSettings",
    "read_token_settings",
]

log = logging.getLogger(__name__)

CONFIG = "tokenizer_config.json"
# The names of tokens that every tokenizer may have. Other keys that end in "_token" name tokens of one model.
NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_EXTRA, _ADDITIONAL = "extra_special_tokens", "additional_special_tokens"  # the newer and the older name
_TYPE = "__type"  # marks an object that is a token
_TRUTHS = ("add_bos_token", "add_eos_token", "add_prefix_space", "legacy")  # settings that are true, false or null
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
USED_KEYS = frozenset({
    "added_tokens_decoder", _ADDITIONAL, _EXTRA, "add_bos_token", "add_eos_token",
    "add_prefix_space", "legacy", "chat_template", "tokenizer_class",
})  # fmt: skip
# Keys that change no ids and no text: limits and habits of training, how the file was written, and words to one program.
# Some repeat what the names of tokens say.
IGNORED_KEYS = frozenset({
    "model_max_length", "max_len", "padding_side", "truncation_side", "model_input_names", "max_length", "stride",
    "truncation_strategy", "pad_to_multiple_of", "pad_token_type_id", "padding", "truncation",
    "name_or_path", "is_local", "local_files_only", "from_slow", "backend", "processor_class", "auto_map", "files_loaded",
    "special_tokens_map_file", "tokenizer_file", "vocab_file", "merges_file", "init_inputs", "trust_remote_code",
    "use_default_system_prompt", "use_fast", "verbose", "errors", "trim_offsets", "tokenizer_type",
    "spaces_between_special_tokens", "response_schema", "response_template",
    "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id",
})  # fmt: skip
# Keys that would change ids or text, and the values with which they do not.
REFUSED_KEYS: Mapping[str, tuple[object, ...]] = {
    "split_special_tokens": (False, None),
    "fix_mistral_regex": (False, None),
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": (False, None),
    "sp_model_kwargs": ({}, None),
    "do_lower_case": (False, None),
    "fast_tokenizer_files": (None, [], ["tokenizer.json"]),
}
NOT_FOR_BPE = "clean_up_tokenization_spaces"  # transformers ignores it for BPE, and it was written for WordPiece


@dataclass(frozen=True, kw_only=True)
class TokenSettings:
    """The settings of a tokenizer that its side files state.

    Members:
        stated: the content of ``tokenizer_config.json``, with the texts of ``special_tokens_map.json``; empty if there are
            no such files.
        names: named tokens that the files state; None is a token that the model does not have.
        extra: further special tokens, without names; None: the files say nothing.
        late: they are stated where those of a SentencePiece model replace them.
        decoder: added tokens by the id that the files give them.
        listed: the files list the added tokens (``added_tokens_decoder``).
    """

    stated: Mapping[str, Any]
    names: Mapping[str, str | AddedToken | None]
    extra: tuple[str | AddedToken, ...] | None
    late: bool
    decoder: Mapping[int, AddedToken]
    listed: bool

    def flag(self, key: str, default: bool) -> bool:
        """Return a truth value of the settings; null is the default."""
        value = self.stated.get(key)
        return default if value is None else bool(value)


def read_token_settings(home: Path) -> TokenSettings:
    """Read the side files of the tokenizer in a folder.

    Raises:
        BundleError: a file is damaged, or a token is not a text or an object with a text as ``content``.
        UnsupportedError: a setting changes texts or ids in a way that is not read.
    """
    path = member(home, CONFIG)
    stated = config = _one_name(read_object(path) if path else {})
    more: Mapping[str, Any] = {}
    where = home / CONFIG
    decoder: dict[int, AddedToken] = {}
    listed = "added_tokens_decoder" in stated
    if listed:
        entries = stated["added_tokens_decoder"]
        if not isinstance(entries, dict) or not all(key.isdecimal() and len(key) < 10 for key in entries):
            raise BundleError(f"{where}: added_tokens_decoder must map ids to tokens, not {shown(entries)}")
        decoder = {int(key): _added(where, f"added_tokens_decoder[{key}]", entries[key]) for key in entries}
    else:
        special_map = member(home, "special_tokens_map.json")
        more = read_object(special_map) if special_map else {}
        stated = _merged(config, more)
    names = _named(where, stated, config, more)
    _check_keys(where, stated, names.keys())
    early, rest = (_extra(where, stated, key) for key in (_EXTRA, _ADDITIONAL))
    late = early is None
    extra = rest if late else early
    added = None if listed else member(home, "added_tokens.json")
    if added is not None:
        special = {str(token) for token in (*map(names.get, NAMES), *(early or ())) if token is not None}
        for text, index in read_object(added).items():
            if type(index) is not int or index < 0 or not text:
                raise BundleError(f"{added}: {shown(text)} must have a token id, not {shown(index)}")
            decoder[index] = AddedToken(text, normalized=text not in special, special=text in special)
    by_text = {str(token): token for token in decoder.values()}
    names = {name: by_text.get(str(token), token) if token is not None else None for name, token in names.items()}
    return TokenSettings(stated=stated, names=names, extra=extra, late=late, decoder=decoder, listed=listed)


def _check_keys(where: Path, stated: Mapping[str, Any], names: Collection[str]) -> None:
    """Refuse or name the keys whose effect is not read; ``names`` are those of tokens."""
    for key, harmless in REFUSED_KEYS.items():
        if stated.get(key) not in harmless:
            raise UnsupportedError(
                f"{where}: {key} {shown(stated[key])} changes how texts become tokens, and is not read; take it out, or "
                "pass another tokenizer with --tokenizer"
            )
    for key in _TRUTHS:
        if stated.get(key) is not None and not isinstance(stated[key], bool):
            raise BundleError(f"{where}: {key} must be true or false, not {shown(stated[key])}")
    known = USED_KEYS | IGNORED_KEYS | REFUSED_KEYS.keys() | {NOT_FOR_BPE, *names}
    empty = {key for key in stated if key.endswith("_token") and stated[key] is None}
    unknown = sorted(stated.keys() - known - empty)
    if unknown:
        log.warning("%s: the settings %s are not known and not used", where, ", ".join(map(shown, unknown)))


def _added(where: Path, what: str, value: object) -> AddedToken:
    """Return a token that a file describes by an object."""
    content = value.get("content") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(content, str) or not content:
        raise BundleError(f"{where}: {printable(what)} must be an object whose content is a text, not {shown(value)}")
    flags = {key: value[key] for key in _FLAGS if key in value}
    if not all(isinstance(flag, bool) for flag in flags.values()):
        raise BundleError(f"{where}: {printable(what)} has a flag that is neither true nor false: {shown(value)}")
    return AddedToken(content, **flags)


def _token(where: Path, what: str, value: object) -> str | AddedToken:
    if isinstance(value, dict):
        return _added(where, what, {**value, "special": True})
    if not isinstance(value, str) or not value:
        raise BundleError(f"{where}: {printable(what)} must be a string, not {shown(value)}")
    return value


def _named(
    where: Path, stated: Mapping[str, Any], config: Mapping[str, Any], more: Mapping[str, Any]
) -> dict[str, str | AddedToken | None]:
    """Return the named tokens in the order in which transformers adds them: those of one model follow those of every model.

    Args:
        where: the file, for messages.
        stated: all settings.
        config: the settings of ``tokenizer_config.json``.
        more: the settings of ``special_tokens_map.json``.
    """
    objects = {key: value for key, value in _own_names(config).items() if isinstance(value, dict) and _TYPE in value}
    later = {key: value for key, value in _own_names(more).items() if isinstance(value, str | dict)}
    texts = {key: value for key, value in _own_names(config).items() if isinstance(value, str)}
    named = stated.get(_EXTRA)
    values = {
        **{key: stated[key] for key in NAMES if key in stated},
        **objects,
        **later,
        **texts,
        **(named if isinstance(named, dict) else {}),
    }
    return {key: None if value is None else _token(where, key, value) for key, value in values.items()}


def _own_names(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that may name tokens of one model."""
    return {key: stated[key] for key in stated if key.endswith("_token") and key not in (*NAMES, *USED_KEYS)}


def _one_name(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in which further special tokens have their newer name."""
    if _ADDITIONAL not in stated or stated.get(_EXTRA):
        return dict(stated)
    return {key: value for key, value in stated.items() if key != _ADDITIONAL} | {_EXTRA: stated[_ADDITIONAL]}


def _merged(stated: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with those of ``special_tokens_map.json``, whose lists of further tokens are put behind the others."""
    ours, theirs = stated.get(_EXTRA), more.get(_EXTRA)
    both = {**stated, **more}
    if isinstance(theirs, list):
        tokens = [one | {"special": True} if isinstance(one, dict) else one for one in theirs]
        both[_EXTRA] = [*(ours if isinstance(ours, list) else ()), *tokens]
    elif isinstance(ours, dict) and isinstance(theirs, dict):
        both[_EXTRA] = ours | theirs
    return both


def _extra(where: Path, stated: Mapping[str, Any], key: str) -> tuple[str | AddedToken, ...] | None:
    """Return further special tokens; None if the files say nothing of them, or name each."""
    value = stated.get(key, {})
    if isinstance(value, dict):
        return None
    if value is not None and not isinstance(value, list):
        raise BundleError(f"{where}: {key} must be a list of tokens, not {shown(value)}")
    return tuple(
        _added(where, key, {**one, "special": one.get("special", _TYPE not in one)})
        if isinstance(one, dict)
        else _token(where, key, one)
        for one in value or ()
    )
