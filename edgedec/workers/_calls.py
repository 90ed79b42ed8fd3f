"""Calls and their results as bytes, in one form for every kind of worker, so that failures are alike as well."""

from __future__ import annotations

import pickle
import traceback
from typing import Any, NamedTuple

from edgedec.errors import EdgedecError

__all__ = ["CallResult", "call", "describe_item", "pack", "unpack"]

_MOST_SHOWN = 100  # characters of an item in a message


class CallResult(NamedTuple):
    """The result of a call in a worker.

    Members:
        done: True if ``data`` is a result; False if it is an exception, or empty because the worker ended.
        data: pickled result or exception.
        lost: description of how the worker ended that had the item; empty if it did not end.
    """

    done: bool
    data: bytes
    lost: str = ""


def pack(value: Any) -> bytes:
    """Return a value as pickled bytes. Errors of pickle pass through."""
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def call(function: bytes, item: bytes) -> CallResult:
    """Call a pickled function with a pickled item, in a worker. Ctrl-C passes through."""
    try:
        return CallResult(True, pack(pickle.loads(function)(pickle.loads(item))))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return CallResult(False, pack(_portable(error)))


def _portable(error: BaseException) -> BaseException:
    """Return the error with its traceback as a note, or an EdgedecError with its text if pickle cannot restore it."""
    # This is what add_note does, which Python 3.10 does not have.
    error.__dict__.setdefault("__notes__", []).append(
        "in a worker:\n" + "".join(traceback.format_exception(error)).rstrip()
    )
    try:
        if type(pickle.loads(pack(error))) is type(error):
            return error
    except Exception:  # an exception's own pickling can raise anything
        pass
    return EdgedecError(f"{type(error).__module__}.{type(error).__qualname__}: {error}")


def unpack(result: CallResult, number: int, item: Any) -> Any:
    """Return the value of a result.

    Args:
        number: number of the item, from 0.
        item: the item, for messages.

    Raises:
        EdgedecError: the worker ended, or its result cannot be unpickled here.
        BaseException: the function raised it for this item.
    """
    if result.lost:
        raise EdgedecError(
            f"item {number}, {describe_item(item)}: its worker {result.lost}; if memory ran out, take fewer workers"
        )
    try:
        value = pickle.loads(result.data)
    except Exception as error:
        raise EdgedecError(f"item {number}, {describe_item(item)}: its result cannot be read here: {error}") from error
    if not result.done:
        raise value
    return value


def describe_item(item: Any) -> str:
    """Return the text of an item for a message, shortened to 100 characters."""
    text = repr(item)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
