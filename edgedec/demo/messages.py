"""The conversations of the demo."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["messages"]


def messages(said: Sequence[str]) -> list[dict[str, str]]:
    """Return a conversation that the user begins, as messages of the chat template.

    Args:
        said: messages of the user and the model in turns: ``["Hi!", "Hello!"]`` is one of each.
    """
    return [{"role": "assistant" if at % 2 else "user", "content": text} for at, text in enumerate(said)]
