"""Texts and ids of the loaded model: prompts, conversations, and their limits."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from edgedec.errors import BundleError, EdgedecError, UnsupportedError, UsageError
from edgedec.runtime.grammar.tools import with_instructions
from edgedec.runtime.protocols import I32
from edgedec.runtime.server.conversations import PromptEnding
from edgedec.runtime.server.errors import ApiError, context_overflow
from edgedec.runtime.server.tool_messages import as_plain_text, knows_tools
from edgedec.runtime.text.chat_template import render
from edgedec.runtime.text.contents import content_text
from edgedec.runtime.text.provenance import OutsideMessage, RenderedText
from edgedec.runtime.text.reasoning import BEGIN, END, ReasoningPlace, reasoning_place
from edgedec.runtime.text.stream import TextStream, token_bytes

if TYPE_CHECKING:
    from edgedec.runtime.session.session import Session

__all__ = ["ModelFacts", "ModelText"]

_REMEMBERED = 4096  # tokens whose bytes are cached
_TAG_TOKENS = 24  # tokens of a tag with blanks after it, at most
_CHARACTERS_PER_TOKEN = 32  # upper bound of a text's average, as in ``Session.may_fit``
# Names that a template gets from the server and that a request may not replace.
_OWN_NAMES = frozenset(["messages", "tools", "bos_token", "eos_token", "add_generation_prompt", "template"])


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Properties of a model that stay known while it is unloaded.

    Members:
        context: size of the context in tokens.
        chat_template: source of the template; empty if the model has none.
        bos, eos: spelling of the tokens that begin and end a text; empty if there is none.
        drafter: name of the drafter.
        planned_bytes: memory that the plan charges.
        family: kind of the model.
        parameters: number of weights.
        bits_per_weight: bits that the bundle stores for each.
        file_bytes: size of the bundle.
        sha256: hash of the bundle's manifest.
        embedding_layer, embedding_size: see ``Session``.
    """

    context: int
    chat_template: str
    bos: str
    eos: str
    drafter: str
    planned_bytes: int
    family: str
    parameters: int
    bits_per_weight: float
    file_bytes: int
    sha256: str
    embedding_layer: str
    embedding_size: int


class ModelText:
    """The tokenizer and the chat template of a loaded model. Its methods may be called in any thread.

    Parameters:
        session: the loaded model.
        chat_template: source of the template in place of the model's own; None: its own.

    Members:
        context: size of the context in tokens.
        vocabulary: number of ids.
        chat_template: source of the template; None if the model has none.
        bos, eos: spelling of the tokens that begin and end a text; empty if there is none.
        drafter: name of the drafter.
        planned_bytes: memory that the plan charges.
        embedding_size: numbers of an embedding; 0 if the model was loaded without them.
        has_reasoning_tags: True if the template, or the tokenizer, has the tags of reasoning.
    """

    def __init__(self, session: Session, chat_template: str | None = None) -> None:
        tokens = session.bundle.tokens
        self._tokenizer, self._session = session.tokenizer, session
        self._bytes: dict[int, bytes] = {}
        self.context = session.run.limits.positions
        self.vocabulary = tokens.size
        self.chat_template = session.bundle.chat_template if chat_template is None else chat_template
        self._bos = tokens.bos
        self.bos = self._spelling(tokens.bos)
        self.eos = self._spelling(tokens.eos[0] if tokens.eos else None)
        self.drafter = session.run.spec.drafter_name
        self.planned_bytes = session.run.plan.total_bytes
        self.embedding_size = session.embedding_size
        own = self.chat_template or ""
        self.has_reasoning_tags = BEGIN in own or END in own or session.tokenizer.id_of(END) is not None

    @property
    def facts(self) -> ModelFacts:
        """The properties of the model."""
        bundle = self._session.bundle
        return ModelFacts(
            context=self.context,
            chat_template=self.chat_template or "",
            bos=self.bos,
            eos=self.eos,
            drafter=self.drafter,
            planned_bytes=self.planned_bytes,
            family=str(bundle.config.get("model_type", "unknown")),
            parameters=bundle.parameters,
            bits_per_weight=bundle.bits_per_weight,
            file_bytes=sum(bundle.file_bytes.values()),
            sha256=bundle.sha256,
            embedding_layer=self._session.embedding_layer,
            embedding_size=self.embedding_size,
        )

    def _spelling(self, token: int | None) -> str:
        return "" if token is None else self._tokenizer.token_of(token) or ""

    def encode(self, text: str, *, param: str) -> I32:
        """Return the ids of a plain prompt, int32 [n], with the tokens that begin a text.

        Raises:
            ApiError: the text is empty, or far too long for the context; ``param`` is the field to blame.
        """
        if not text:
            raise ApiError(400, f"{param}: the prompt is empty", param=param)
        self.check_length(text, param)
        return self._some(self._tokenizer.encode(text), param)

    def encode_rendered(self, text: str) -> I32:
        """Return the ids of a conversation that ``render_chat`` rendered, int32 [n], to be continued by an answer.

        Raises:
            ApiError: the text is far too long for the context, or has a control token that cannot be told from the
                template's.
        """
        self.check_length(text, "messages")
        try:
            return self._some(self._tokenizer.encode_rendered(text), "messages")
        except UsageError as error:
            raise ApiError(400, str(error), param="messages") from error

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        names: Mapping[str, Any] | None = None,
        ending: PromptEnding = "answer",
    ) -> str:
        """Return a conversation as text in the model's template. A template that knows no tools gets their description.

        Parameters:
            messages: JSON data, each with ``role`` and ``content``.
            tools: JSON data of the functions that the model may call; None: none.
            names: further names for the template. If ``enable_thinking`` is false among them, reasoning that the template
                opens in an answer nevertheless is closed.
            ending: the end of the text; with ``open`` it ends with the content of the last message, to its last space.

        Raises:
            ApiError: the model has no template (status 400), the template refuses the conversation or to leave it open
                (400), or it is damaged (500).
        """
        if self.chat_template is None:
            raise ApiError(
                400,
                "the model has no chat template; ask /v1/completions, which continues plain text",
                param="messages",
                code="no_chat_template",
            )
        kinds = [OutsideMessage if isinstance(message, OutsideMessage) else dict for message in messages]
        if tools is not None:
            messages = with_instructions(self.chat_template, messages, tools)
        if not knows_tools(self.chat_template):
            messages = as_plain_text(messages)
        if reserved := _OWN_NAMES & set(names or ()):
            raise ApiError(
                400,
                f"chat_template_kwargs: {min(reserved)} is set by the server; leave it out",
                param="chat_template_kwargs",
            )
        mark = f"end-{secrets.token_hex(8)}" if ending == "open" else ""
        if mark:  # the text is cut here, because templates write the end of a message after its content
            messages = [*messages[:-1], {**messages[-1], "content": content_text(messages[-1]["content"], "") + mark}]
        try:
            text = render(
                self.chat_template,
                [kind(message) for kind, message in zip(kinds, messages, strict=True)],
                bos_token=self.bos,
                eos_token=self.eos,
                add_generation_prompt=ending == "answer",
                tools=None if tools is None else list(tools),
                **(names or {}),
            )
        except BundleError as error:
            raise ApiError(500, str(error)) from error
        except EdgedecError as error:
            raise ApiError(400, str(error), param="messages", code="chat_template_refused") from error
        if mark and text.count(mark) != 1:
            raise ApiError(
                400,
                "the chat template does not show the end of the last message, so it cannot be continued; "
                "set continue_final_message to false",
                param="continue_final_message",
                code="chat_template_refused",
            )
        if mark:
            return _between(text, 0, text.index(mark))
        is_open = ending == "answer" and reasoning_place(text) == "within"
        return _closed(text) if is_open and (names or {}).get("enable_thinking") is False else text

    def reasoning_place(self, ids: I32) -> ReasoningPlace:
        """Return the place at which the answer to a prompt, int32 [n], begins."""
        return reasoning_place(self.spelled(ids[-_TAG_TOKENS:])) if self.has_reasoning_tags else "before"

    def without_bos(self, text: str) -> str:
        """Return a rendered conversation as a plain prompt, to which ``encode`` adds the token that begins a text."""
        return text.removeprefix(self.bos) if self.first_ids else text

    @property
    def first_ids(self) -> tuple[int, ...]:
        """The ids that ``encode`` puts before a text, which are one or none."""
        if self._bos is None or self._tokenizer.encode("", add_special=True)[:1].tolist() != [self._bos]:
            return ()
        return (self._bos,)

    def id_of(self, token: str) -> int | None:
        """Return the id of a token by its spelling in the vocabulary; None if there is none."""
        return self._tokenizer.id_of(token)

    def encode_within(self, text: str, *, param: str) -> I32:
        """Return the ids of a part of a prompt, int32 [n], in which the spelling of control tokens is text.

        Raises:
            ApiError: the part is far too long for the context; ``param`` is the field to blame.
        """
        self.check_length(text, param)
        return self.tokenize(text, add_special=False, param=param, control_tokens=False)

    def check_ids(self, ids: Sequence[int], *, param: str) -> I32:
        """Return ids as an array, int32 [n].

        Raises:
            ApiError: there is none, or one is not an id of the model.
        """
        if not ids:
            raise ApiError(400, f"{param}: the prompt is empty", param=param)
        if not 0 <= min(ids) <= max(ids) < self.vocabulary:
            raise ApiError(400, f"{param}: token ids must be from 0 to {self.vocabulary - 1}", param=param)
        return np.array(ids, np.int32)

    def check_fits(self, ids: I32, *, param: str) -> None:
        """Check that a prompt leaves room for the first token of the answer.

        Raises:
            ApiError: it does not; the status is 400.
        """
        if len(ids) >= self.context:
            raise context_overflow(len(ids), self.context, param=param)

    def tokenize(self, text: str, *, add_special: bool, param: str, control_tokens: bool = True) -> I32:
        """Return the ids of a text, int32 [n]. Without ``control_tokens`` their spelling in it is text.

        Raises:
            ApiError: the tokenizer cannot encode the text; ``param`` is the field to blame.
        """
        try:
            return self._tokenizer.encode(text, add_special=add_special, control_tokens=control_tokens)
        except EdgedecError as error:
            raise ApiError(400, str(error), param=param) from error

    def piece(self, token: int) -> str:
        """Return the spelling of a token in the vocabulary; empty if no token has this id."""
        return self._tokenizer.token_of(token) or ""

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token within a text; a special token's are its spelling."""
        if token not in self._bytes:
            if len(self._bytes) == _REMEMBERED:
                self._bytes.clear()
            self._bytes[token] = token_bytes(self._tokenizer, [token])[0] or self.piece(token).encode()
        return self._bytes[token]

    def stream(self, context: Sequence[int] | I32) -> TextStream:
        """Return a converter of the ids that follow ``context`` into text."""
        return TextStream(self._tokenizer, context=context)

    def decode(self, ids: Sequence[int] | I32) -> str:
        """Return the text of ids."""
        return self._tokenizer.decode(ids)

    def spelled(self, ids: I32) -> str:
        """Return the text of ids, int32 [n], with their special tokens, as far as the tokenizer tells them apart."""
        try:
            return b"".join(map(self.token_bytes, ids.tolist())).decode(errors="replace")
        except UnsupportedError:
            return self.decode(ids)

    def check_length(self, text: str, param: str) -> None:
        """Refuse a text that cannot fit before it is tokenized, which takes hundreds of bytes per token.

        Raises:
            ApiError: it is far too long for the context; ``param`` is the field to blame.
        """
        if not self._session.may_fit(text):
            least = len(text) // _CHARACTERS_PER_TOKEN
            raise context_overflow(least, self.context, param=param, exact=False)

    def _some(self, ids: I32, param: str) -> I32:
        if not len(ids):
            raise ApiError(400, f"{param}: the tokenizer makes no token of the prompt", param=param)
        return ids


def _closed(text: str) -> str:
    """Return a prompt that ends with the tag that opens reasoning, with its end, as Qwen3's template writes it."""
    lines = min(2, len(text) - len(text.rstrip("\n")))
    rest = "\n" * (2 - lines) + f"{END}\n\n"
    return text.followed_by(rest) if isinstance(text, RenderedText) else text + rest


def _between(text: str, start: int, stop: int) -> str:
    return text.cut(start, stop) if isinstance(text, RenderedText) else text[start:stop]
