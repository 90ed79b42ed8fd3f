"""A call and its outcome as bytes: the same wherever it runs, so that it fails alike as well."""

from __future__ import annotations

import pickle
import traceback
from typing import Any, NamedTuple

from edgedec.errors import EdgedecError

__all__ = ["Outcome", "call", "opened", "packed", "shown"]

_MOST_SHOWN = 100  # characters of an item


class Outcome(NamedTuple):
    """Members:
    done: ``data`` is a result; else an exception, or nothing where the worker is gone.
    data: pickled.
    lost: how the worker ended that had the item.
    """

    done: bool
    data: bytes
    lost: str = ""


def packed(value: Any) -> bytes:
    """Raises what pickle does for a value that it cannot take."""
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def call(function: bytes, item: bytes) -> Outcome:
    """``function(item)``, in a worker. Ctrl-C passes through."""
    try:
        return Outcome(True, packed(pickle.loads(function)(pickle.loads(item))))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Outcome(False, packed(_portable(error)))


def _portable(error: BaseException) -> BaseException:
    """The error with its traceback, or what can be said of one that pickle does not bring back."""
    error.add_note("in a worker:\n" + "".join(traceback.format_exception(error)).rstrip())
    try:
        if type(pickle.loads(packed(error))) is type(error):
            return error
    except Exception:  # whatever an exception's own pickling does
        pass
    return EdgedecError(f"{type(error).__module__}.{type(error).__qualname__}: {error}")


def opened(outcome: Outcome, number: int, item: Any) -> Any:
    """The result.

    Args:
        number: of the item, from 0.

    Raises:
        EdgedecError: the worker is lost, or what it sent cannot be read here. Otherwise the item's own exception.
    """
    if outcome.lost:
        raise EdgedecError(
            f"item {number}, {shown(item)}: its worker {outcome.lost}; if memory ran out, take fewer workers"
        )
    try:
        value = pickle.loads(outcome.data)
    except Exception as error:
        raise EdgedecError(f"item {number}, {shown(item)}: its result cannot be read here: {error}") from error
    if not outcome.done:
        raise value
    return value


def shown(item: Any) -> str:
    """An item in a message."""
    text = repr(item)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
