"""Reasoning of an answer: the text between ``<think>`` and ``</think>`` at its beginning, and what follows it.

A chat template may write the opening tag itself, at the end of the prompt, so that the answer has the closing one only. Tags
later in an answer are content, as they stand.

Source: the format of DeepSeek-R1, which Qwen3, QwQ, GLM and others share.
"""

from __future__ import annotations

from typing import Literal

__all__ = ["BEGIN", "END", "ReasoningPlace", "ReasoningSplitter", "Thought", "reasoning_place"]

BEGIN, END = "<think>", "</think>"

# Place at which an answer begins: within the reasoning, after it, or before an answer that may begin with it.
ReasoningPlace = Literal["within", "after", "before"]


def reasoning_place(prompt: str) -> ReasoningPlace:
    r"""Return the place at which the answer to a prompt begins, by the end of the prompt.

    >>> reasoning_place("<|assistant|><think>\n")
    'within'
    """
    end = prompt.rstrip()
    return "within" if end.endswith(BEGIN) else "after" if end.endswith(END) else "before"


class Thought(str):
    """A part of an answer's reasoning."""


class ReasoningSplitter:
    """A parser that divides an answer into reasoning and content while it is written.

    Both do not depend on the division of the text into pieces. Blanks at the beginning and the end of the reasoning, and
    after it, are left out. An answer that does not begin with the opening tag is content, as it stands.

    Parameters:
        place: place at which the answer begins.

    Members:
        reasoning, content: texts so far.
        within: True while the reasoning is not closed.
    """

    def __init__(self, place: ReasoningPlace) -> None:
        self.reasoning = self.content = ""
        self._phase: Literal["before", "within", "after", "content"] = "content" if place == "after" else place
        self._text = ""  # text that was not divided yet
        self._parts: list[str] = []

    @property
    def within(self) -> bool:
        """True while the reasoning is not closed."""
        return self._phase == "within"

    def feed(self, text: str) -> list[str]:
        """Add text, and return the parts that it completes, in their order; those of the reasoning are ``Thought``."""
        self._text += text
        if self._phase == "before":
            self._read_begin()
        if self._phase == "within":
            self._read_reasoning()
        if self._phase == "after":
            self._text = self._text.lstrip()
            self._phase = "content" if self._text else "after"
        if self._phase == "content":
            self._add(self._text)
            self._text = ""
        parts, self._parts = self._parts, []
        return parts

    def finish(self) -> list[str]:
        """Return the parts that were held back. Call it once, after the last text."""
        if self._phase == "within":
            self._add(Thought(self._text.rstrip()))
        else:
            self._add(self._text)
        parts, self._parts = self._parts, []
        return parts

    def _add(self, part: str) -> None:
        if isinstance(part, Thought):
            self.reasoning += part
        else:
            self.content += part
        if part:
            self._parts.append(part)

    def _read_begin(self) -> None:
        """Read blanks and the opening tag, if the answer begins with it."""
        start = self._text.lstrip()
        if start.startswith(BEGIN):
            self._text, self._phase = start.removeprefix(BEGIN), "within"
        elif not BEGIN.startswith(start):
            self._phase = "content"

    def _read_reasoning(self) -> None:
        """Read reasoning up to the closing tag, or to what may begin it, and the blanks before that."""
        text = self._text if self.reasoning else self._text.lstrip()
        before, end, after = text.partition(END)
        if end:
            self._add(Thought(before.rstrip()))
            self._text, self._phase = after, "after"
            return
        most = min(len(END) - 1, len(text))
        tag = next((count for count in range(most, 0, -1) if END.startswith(text[-count:])), 0)
        whole = text[: len(text) - tag].rstrip()
        self._add(Thought(whole))
        self._text = text[len(whole) :]
