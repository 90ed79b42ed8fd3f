"""Texts, conversations and an answer with their results here, which a browser compares with its own.

Tokenizer and template engine of the browser are other programs than those of the Python side. A tokenizer that they read
differently would change the answers without a sign; with probes the page refuses it and names the text. The answer is
that of the CPU's kernels, so that the page can say whether its GPU writes the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer as Hf

from edgedec.bundle.bundle import Bundle
from edgedec.errors import EdgedecError, UsageError
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from edgedec.runtime.text.chat_template import render
from edgedec.runtime.text.tokenizer import Tokenizer
from edgedec.same_tokens import TEXTS, added_texts

__all__ = ["CONVERSATIONS", "known_answer", "probes", "spellings"]

_ANSWER_TOKENS = 16

_MOST_ADDED = 400  # texts around added tokens; some tokenizers have thousands of such tokens
CONVERSATIONS = (
    ("Hello",),
    ("  What's up?\n", "Not much.", "Tell me a story."),
    ("a", "b", "c", " d ", "{{ e }}"),
)


def spellings(bundle: Bundle, tokenizer: Tokenizer) -> dict[str, str]:
    """Return the texts of the tokens that begin and end a text, empty for a token that the model lacks."""
    tokens = bundle.tokens
    ids = {"bos": tokens.bos, "eos": tokens.eos[0] if tokens.eos else None}
    return {name: "" if token is None else tokenizer.token_of(token) or "" for name, token in ids.items()}


def probes(bundle: Bundle, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return ``texts`` with their ids and ``conversations`` with their rendered texts, as JSON data.

    A text that the tokenizer refuses is left out, and so is a conversation that the template refuses. A template that writes
    the date has other results on other days, and none are given.
    """
    texts = []
    around = added_texts(Hf.from_file(str(bundle.tokenizer_file)))
    for text in [*TEXTS, *around[:_MOST_ADDED]]:
        try:
            texts.append({"text": text, "ids": tokenizer.encode(text).tolist()})
        except UsageError:
            continue
    template, names = bundle.chat_template, spellings(bundle, tokenizer)
    conversations = []
    for contents in CONVERSATIONS if template is not None and "strftime_now" not in template else ():
        messages = _messages(contents)
        try:
            text = render(
                template, messages, bos_token=names["bos"], eos_token=names["eos"], add_generation_prompt=True
            )
        except EdgedecError:
            continue
        conversations.append({"messages": messages, "text": text})
    return {"texts": texts, "conversations": conversations}


def known_answer(bundle: Bundle, *, ctx_size: int, kv_bits: int) -> dict[str, list[int]] | None:
    """Return ``prompt`` and ``tokens``, ids of a text and of its greedy continuation by the CPU's own kernels.

    None: the tokenizer makes no ids of the text, or the kernels do not compute all of the model, and others may write other
    tokens where two are equally likely.

    Raises:
        BundleError, UnsupportedError: the CPU cannot run the model.
    """
    with Session.open(bundle.path, ctx_size=ctx_size, kv_bits=kv_bits) as session:
        if not session.target.info.batch_invariant:
            return None
        prompt = session.tokenizer.encode(TEXTS[0])[: ctx_size // 2]
        if not len(prompt):
            return None
        answer = session.generate(prompt, n_predict=_ANSWER_TOKENS, sampling=SamplingConfig(temperature=0))
    return {"prompt": prompt.tolist(), "tokens": answer.tokens}


def _messages(contents: Sequence[str]) -> list[dict[str, str]]:
    """Return messages of user and assistant in turns."""
    return [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(contents)]
