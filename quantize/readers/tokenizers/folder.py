"""Read the tokenizer of a folder as transformers' ``AutoTokenizer`` does, from all files that say something of it.

A folder has the vocabulary (``tokenizer.json``, ``tokenizer.model``, or ``vocab.json`` with ``merges.txt``) and settings
(``token_settings``), which add tokens, change their flags, and name those that templates use.

Source: ``tokenization_utils_base.py`` and ``tokenization_utils_tokenizers.py`` of transformers 5.24.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from edgedec.bundle.file_kinds import identify, refusal
from edgedec.errors import BundleError
from edgedec.quantize.readers.chat_templates import compose, folder_templates
from edgedec.quantize.readers.tokenizers.token_settings import (
    CONFIG,
    NAMES,
    NOT_FOR_BPE,
    TokenSettings,
    read_token_settings,
)
from edgedec.quantize.readers.tokenizers.tokenizer_file import CheckedTokenizer, check_tokenizer, read_tokenizer
from edgedec.quantize.readers.tokenizers.transformers_class import CLASSES, TokenizerClass
from edgedec.quantize.readers.tokenizers.vocabulary_files import Vocabulary, find_vocabulary, read_vocabulary
from edgedec.quantize.readers.untrusted import member, read_object, shown

__all__ = ["FolderTokenizer", "end_ids", "read_folder_tokenizer", "token_ids"]

log = logging.getLogger(__name__)

_Token = str | AddedToken


@dataclass(frozen=True, kw_only=True)
class FolderTokenizer:
    """The tokenizer of a folder.

    Members:
        home: the folder.
        checked: the tokenizer with all its tokens.
        names: texts of the named tokens (``bos_token``, ``pad_token``).
        invented: names whose tokens no file has, and that only the class of the tokenizer gives.
        templates: chat templates by name.
    """

    home: Path
    checked: CheckedTokenizer
    names: Mapping[str, str]
    invented: frozenset[str]
    templates: Mapping[str, str]

    def token_id(self, name: str) -> int | None:
        """Return the id of a named token, or None if there is none in the files."""
        text = None if name in self.invented else self.names.get(name)
        return None if text is None else self.checked.vocabulary.token_to_id(text)

    def chat_template(self, bos: int | None, eos: int | None) -> str | None:
        """Return the one chat template of a bundle whose BOS and first end token are these.

        Raises:
            UnsupportedError: no template has a name that is known.
        """
        words = self.checked.vocabulary
        given = {
            name: "" if index is None else words.id_to_token(index) or ""
            for name, index in (("bos_token", bos), ("eos_token", eos))
        }
        return compose(self.home, self.templates, self.names, given)


def read_folder_tokenizer(path: Path, vocab_size: int, config: Mapping[str, Any] | None = None) -> FolderTokenizer:
    """Read the tokenizer of a folder, or a file of it, with the files beside it.

    A file without a ``tokenizer_config.json`` beside it is read alone.

    Args:
        path: the folder, or the file with the vocabulary.
        vocab_size: number of ids of the model.
        config: ``config.json`` of the folder; None: it is read if it is there.

    Raises:
        BundleError: a file is damaged, an id is ``vocab_size`` or more, or BOS or EOS has no id.
        UnsupportedError: a file is of a kind that is not read.
        UsageError: there is no vocabulary.
    """
    home = path if path.is_dir() else path.parent
    settings = read_token_settings(home)
    config = _stated_config(home) if config is None else config
    file = find_vocabulary(path) if path.is_dir() else path
    if file.suffix not in (".json", ".model") or (path != home and member(home, CONFIG) is None):
        checked = read_tokenizer(file, vocab_size)
        return FolderTokenizer(
            home=home, checked=checked, names={}, invented=frozenset(), templates=folder_templates(home, {})
        )
    if identify(file).role == "lfs":
        raise BundleError(refusal(file, "tokenizer"))
    vocabulary = read_vocabulary(file, settings, config)
    finish = _Finish(file, vocabulary, settings, vocab_size)
    checked = check_tokenizer(file, vocabulary.json, vocab_size, finish)
    names = {name: str(token) for name, token in finish.names.items() if token is not None}
    for name in ("bos_token", "eos_token"):
        if name in finish.invented:
            log.warning(
                "%s: transformers takes %s as %s, which no file has; it is left out", home, shown(names[name]), name
            )
        if name in settings.names and name in names and checked.vocabulary.token_to_id(names[name]) is None:
            raise BundleError(f"{home / CONFIG}: {name} is {shown(names[name])}, which the tokenizer does not have")
    templates = folder_templates(home, settings.stated)
    found = FolderTokenizer(home=home, checked=checked, names=names, invented=finish.invented, templates=templates)
    _note_ignored_flags(home, found, settings, vocabulary.unfinished)
    return found


def _stated_config(home: Path) -> Mapping[str, Any]:
    path = member(home, "config.json")
    return read_object(path) if path else {}


def end_ids(
    folder: Path, config: Mapping[str, Any] | None, vocab_size: int, tokenizer: FolderTokenizer
) -> tuple[int, ...]:
    """Return the ids that end a text: the tokenizer's EOS, and those of ``generation_config.json`` or else of ``config``.

    ``config`` is that of the folder; None: it is read if it is there.

    Raises:
        BundleError: an id is outside the vocabulary.
    """
    path = member(folder, "generation_config.json")
    stated = token_ids(path, read_object(path), "eos_token_id", vocab_size) if path else []
    own = tokenizer.token_id("eos_token")
    ends = [] if own is None else [own]
    config = _stated_config(folder) if config is None else config
    ends += stated or token_ids(folder / "config.json", config, "eos_token_id", vocab_size)
    return tuple(dict.fromkeys(ends))


def token_ids(path: Path, values: Mapping[str, Any], key: str, vocab_size: int) -> list[int]:
    """Return the ids of a key that holds one token id, a list of ids, or null.

    Raises:
        BundleError: an id is outside the vocabulary.
    """
    value = values.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(item) is int and 0 <= item < vocab_size for item in ids):
        raise BundleError(f"{path}: {key} must be ids below vocab_size ({vocab_size}), not {shown(value)}")
    return ids


class _Finish:
    """Adds the tokens of the settings to a tokenizer, and its post-processor, as ``TokenizersBackend.__init__`` does.

    Members:
        names: all named tokens, those of the class and the vocabulary included.
        invented: names whose tokens only the class has.
    """

    def __init__(self, path: Path, vocabulary: Vocabulary, settings: TokenSettings, vocab_size: int) -> None:
        self._path, self._vocabulary, self._settings, self._size = path, vocabulary, settings, vocab_size
        self._class = CLASSES.get(vocabulary.made_by) or TokenizerClass(names={}, parts=lambda _settings: {})
        self.names = _in_order({**vocabulary.names, **self._class.names, **settings.names})
        self.invented: frozenset[str] = frozenset()
        replaced = vocabulary.extra is not None and (settings.extra is None or settings.late)
        self._extra = (vocabulary.extra if replaced else settings.extra) or ()

    def __call__(self, tokenizer: Tokenizer) -> bool:
        before = _added_tokens(tokenizer)
        if tokenizer.padding is not None:
            self.names = _in_order({"pad_token": tokenizer.padding["pad_token"], **self.names})
        added = {} if self._settings.listed else self._vocabulary.added or tokenizer.get_added_tokens_decoder()
        decoder = {**self._settings.decoder, **added}
        in_files = {str(token) for token in decoder.values()}
        self.invented = frozenset(
            name
            for name, token in self.names.items()
            if name not in self._settings.names
            and str(token) not in in_files
            and tokenizer.token_to_id(str(token)) is None
        )
        self._add(tokenizer, decoder)
        if self._settings.flag(NOT_FOR_BPE, False) and not isinstance(tokenizer.model, BPE):
            log.warning(
                "%s: %s is true, and is not followed: spaces before punctuation stay in texts, unlike in transformers",
                self._path.parent, NOT_FOR_BPE,
            )  # fmt: skip
        own_post = self._vocabulary.unfinished or self._class.own_post
        if own_post:
            self._set_post_processor(tokenizer)
        return own_post or _added_tokens(tokenizer) != before

    def _add(self, tokenizer: Tokenizer, decoder: Mapping[int, AddedToken]) -> None:
        present = list(tokenizer.get_added_tokens_decoder().values())
        states = {repr(token) for token in present}  # two tokens are equal if their texts are
        named = [token for token in self.names.values() if token is not None]
        texts = {str(token) for token in named}
        # The library still takes a token for special that was special before.
        special = {str(token) for token in (*present, *decoder.values()) if token.special}
        listed = [self._flagged(decoder[index], texts, special) for index in sorted(decoder)]
        wanted: list[_Token] = [token for token in listed if repr(token) not in states]
        known = {str(token) for token in (*present, *wanted)}
        for token in (*named, *self._extra):
            if str(token) in known or token in wanted or self._without_row(tokenizer, str(token), len(wanted)):
                continue
            wanted.append(token)
        for token in wanted:
            if self._vocabulary.exact and isinstance(token, AddedToken) and token.normalized:
                log.warning(
                    "%s: the token %s is found in the text itself, though its files say in the normalized one",
                    self._path.parent, shown(str(token)),
                )  # fmt: skip
        tokenizer.add_tokens([self._flagged(token, texts, special) for token in wanted])
        if self._class.marks_all:
            known |= {str(token) for token in wanted}
            marked = dict.fromkeys(str(token) for token in (*named, *self._extra) if str(token) in known)
            tokenizer.add_tokens([AddedToken(text, special=True) for text in marked])
        for index, token in decoder.items():
            if (number := tokenizer.token_to_id(str(token))) != index:
                log.warning(
                    "%s: the token %s has the id %s, as in transformers, though its files say %d",
                    self._path.parent, shown(str(token)), number, index,
                )  # fmt: skip

    def _flagged(self, token: _Token, named: Collection[str], special: Collection[str]) -> AddedToken:
        """Return a token with the flags that it has once it is added; ``special`` are tokens that were special before."""
        text = str(token)
        if isinstance(token, str):
            return AddedToken(text, special=True)
        if self._vocabulary.exact and token.normalized:
            token = AddedToken(**token.__getstate__() | {"normalized": False})
        if text in named:
            token.special = True  # a token that does not say whether it is normalized is not, then
        elif text in special:
            token = AddedToken(**token.__getstate__() | {"special": True})
        return token

    def _without_row(self, tokenizer: Tokenizer, text: str, waiting: int) -> bool:
        """Return whether a named token would be a new one that has no row in the model; it is left out, then."""
        count = max(tokenizer.get_vocab_size(False), 1 + max(tokenizer.get_added_tokens_decoder(), default=-1))
        if tokenizer.token_to_id(text) is not None or count + waiting < self._size:
            return False
        if text in {str(token) for token in (*self._settings.names.values(), *(self._settings.extra or ()))}:
            log.warning("%s: the token %s is left out: the model has no row for it", self._path.parent, shown(text))
        return True

    def _set_post_processor(self, tokenizer: Tokenizer) -> None:
        texts = {name: str(self.names.get(name)) for name in ("bos_token", "eos_token") if self._adds(name)}
        tokens = {
            name: (text, index) for name, text in texts.items() if (index := tokenizer.token_to_id(text)) is not None
        }
        ends = [[f"{tokens[name][0]}:0"] if name in tokens else [] for name in ("bos_token", "eos_token")]
        tokenizer.post_processor = TemplateProcessing(
            single=[*ends[0], "$A:0", *ends[1]], pair=None, special_tokens=list(tokens.values())
        )

    def _adds(self, name: str) -> bool:
        stated = self._vocabulary.unfinished and self._settings.flag(f"add_{name}", False)
        return stated and self.names.get(name) is not None


def _in_order(names: Mapping[str, _Token | None]) -> dict[str, _Token | None]:
    """Return named tokens, those of one model after those of every model."""
    return {name: names[name] for name in (*NAMES, *(name for name in names if name not in NAMES)) if name in names}


def _added_tokens(tokenizer: Tokenizer) -> dict[int, str]:
    """Return the added tokens with their flags, which ``==`` of the library does not compare."""
    return {index: repr(token) for index, token in tokenizer.get_added_tokens_decoder().items()}


def _note_ignored_flags(folder: Path, tokenizer: FolderTokenizer, settings: TokenSettings, unfinished: bool) -> None:
    """Name ``add_bos_token`` and ``add_eos_token`` where a reader would expect something else than what is done."""
    ids = tokenizer.checked.vocabulary.encode("a").ids
    for name, at in (("bos_token", 0), ("eos_token", -1)):
        index = tokenizer.token_id(name)
        added = index is not None and bool(ids) and ids[at] == index
        stated = settings.stated.get(f"add_{name}")
        if stated is not None and bool(stated) != added:
            log.warning(
                "%s: add_%s is %s, and the post-processor of the tokenizer decides otherwise, as in transformers 5",
                folder, name, str(bool(stated)).lower(),
            )  # fmt: skip
        elif stated is None and unfinished and name == "bos_token" and index is not None:
            log.warning(
                "%s: prompts get no BOS, as in transformers 5, because add_bos_token is not stated; older ones added it",
                folder,
            )
