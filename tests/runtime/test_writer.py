"""Test what a writer keeps of the tokens of a step."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from edgedec import demo
from edgedec.bundle import Bundle
from edgedec.runtime.answer import Answer
from edgedec.runtime.driver.counters import Counters
from edgedec.runtime.protocols import Token
from edgedec.runtime.text.stream import TextStream
from edgedec.runtime.text.tokenizer import Tokenizer
from edgedec.runtime.writer import Account, AnswerWriter

END = 2


def write(steps: Sequence[Sequence[int]], *, most: int = -1) -> Answer:
    """Return the answer of tokens that come in steps, which is interrupted from the beginning."""
    answer = Answer()
    text = TextStream(Tokenizer.load(Bundle.open(demo.bundle_path()).tokenizer_file), ())
    writer = AnswerWriter(
        answer, Account(Counters), text, n_predict=most, ends=(END,), interrupted=lambda: bool(answer.tokens)
    )
    for step in steps:
        writer.take([Token(token, guessed=False) for token in step])
    return answer


@pytest.mark.parametrize(
    ("steps", "most", "kept", "reason"),
    [
        (((), (300, 301, 302), (303,)), -1, 3, "interrupted"),
        (((300, END, 301),), -1, 2, "eos"),
        (((300, 301, 302),), 2, 2, "limit"),
    ],
)
def test_an_interruption_keeps_the_tokens_of_the_step(
    steps: Sequence[Sequence[int]], most: int, kept: int, reason: str
) -> None:
    answer = write(steps, most=most)
    assert (len(answer.tokens), answer.stop_reason) == (kept, reason)
