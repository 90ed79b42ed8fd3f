"""The compiled loop: drafters that read the text, growth of trees, sampling, verification, and whole rounds, in C++.

Python's loop (``runtime/decoders``, ``runtime/drafters``, ``runtime/trees``, ``runtime/verifiers``,
``runtime/sampling``) is the definition. The library makes the same trees and writes the same texts. It is optional:
without it, or with EDGEDEC_LOOP=python, every round runs in Python. While a function of the library runs, the interpreter's
lock is free.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable
from ctypes import c_char_p, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any

from edgedec.environment import LOOP
from edgedec.errors import DeviceError, EdgedecError, UsageError
from edgedec.host.install_hint import install_again
from edgedec.runtime.base.native_library import Functions, open_library
from edgedec.runtime.kernels.recipe import LOOP_LIBRARY

__all__ = ["LOOPS", "NO_TOKEN", "Loop", "load"]

LOOPS = ("compiled", "python")  # values of EDGEDEC_LOOP
NO_TOKEN = -2  # result of a function: the logits of a row give no token
_ABI = 20  # value of edgedec_loop_abi() in api.cpp
_LOG = logging.getLogger(__name__)

_TREE = (c_void_p, c_void_p, c_int64)  # tokens, parents, number of nodes
_TEXT = (c_void_p, c_int64)  # ids, number
_MEASURED = (c_void_p, c_int64, c_int64, c_void_p)  # acceptance, its depths and ranks, memory of the policy
_FUNCTIONS: Functions = {
    "edgedec_loop_error": (c_char_p, ()),
    "edgedec_loop_arguments_size": (c_int64, (c_int64,)),
    "edgedec_loop_context_key": (c_int64, _TEXT),
    "edgedec_loop_draft_open": (c_void_p, (c_int64,) * 4),
    "edgedec_loop_auto_open": (c_void_p, (c_void_p, c_int64, c_int64)),
    "edgedec_loop_model_open": (c_void_p, (c_void_p, c_int64, c_int64)),
    "edgedec_loop_draft_close": (None, (c_void_p,)),
    "edgedec_loop_draft_expand": (c_int64, (c_void_p, *_TEXT, *_TREE, c_void_p, c_int64, *(c_void_p,) * 3)),
    "edgedec_loop_draft_observe": (c_int64, (c_void_p, c_void_p, c_int64, c_int32, c_void_p, c_void_p, c_int64)),
    "edgedec_loop_memory_open": (c_void_p, (c_void_p,)),
    "edgedec_loop_memory_close": (None, (c_void_p,)),
    "edgedec_loop_grow": (
        c_int64,
        (
            *(c_void_p, *_TEXT, *(c_int64,) * 3, c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_int64),
            *(*_MEASURED, *(c_void_p,) * 3),
        ),
    ),
    "edgedec_loop_distribution": (c_int64, (c_void_p, c_void_p, c_int64, *_TEXT, c_void_p)),
    "edgedec_loop_verify": (c_int64, (c_void_p, *_TREE, c_void_p, c_int64, *_TEXT, c_int64, c_void_p, c_void_p)),
    "edgedec_loop_rounds": (c_int64, (c_void_p,)),
    "edgedec_loop_follower_open": (c_void_p, ()),
    "edgedec_loop_follower_close": (None, (c_void_p,)),
    "edgedec_loop_begin": (None, (c_void_p,)),
    "edgedec_loop_follow": (c_int64, (c_void_p, c_int64)),
    "edgedec_loop_end": (None, (c_void_p,)),
    "edgedec_loop_stop": (None, (c_void_p,)),
    "edgedec_loop_halt": (None, (c_void_p,)),
    "edgedec_loop_accelerator_check": (c_int64, (c_void_p,)),
    "edgedec_loop_cache_instructions": (c_int64, ()),
    "edgedec_loop_accelerator_submit": (c_int32, (c_void_p, c_int64, c_int64)),
    "edgedec_loop_accelerator_wait": (c_int32, (c_void_p,)),
    "edgedec_loop_accelerator_move": (
        c_int32,
        (c_void_p, c_int64, c_void_p, c_void_p, *(c_int64,) * 3, c_void_p, c_int64),
    ),
    "edgedec_loop_accelerator_settle": (None, (c_void_p,)),
}


class Loop:
    """A loaded library.

    Parameters:
        path: the library's file.

    Raises:
        DeviceError: the file is not the library of this version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = open_library(path, _FUNCTIONS, abi=("edgedec_loop_abi", _ABI), title="edgedec's compiled loop")
        self.function = functools.partial(getattr, self._library)

    def call(self, name: str, *arguments: Any) -> int:
        """Call a function of the library and return its result, which may be ``NO_TOKEN``.

        Raises:
            EdgedecError: the arguments are refused.
        """
        return self.check(getattr(self._library, name)(*arguments))

    def close_with(self, owner: object, function: str, address: int, *kept: object) -> None:
        """Call a closing function with ``address`` once ``owner`` is freed; ``kept`` live until then.

        It is not called at the end of the process, because a thread may be in a call of the library.
        """
        weakref.finalize(owner, _close, self.function(function), address, kept).atexit = False

    def check(self, result: int) -> int:
        """Return the result of a function.

        Raises:
            EdgedecError: it reports an error other than ``NO_TOKEN``.
        """
        if result < 0 and result != NO_TOKEN:
            raise EdgedecError(f"compiled loop: {self._library.edgedec_loop_error().decode()}")
        return result


def _close(function: Callable[[int], None], address: int, kept: tuple[object, ...]) -> None:
    function(address)


@functools.cache
def load() -> Loop | None:
    """Return the library of this installation, which is loaded once; None without it, and with EDGEDEC_LOOP=python.

    Raises:
        UsageError: EDGEDEC_LOOP has an unknown value.
        DeviceError: EDGEDEC_LOOP asks for the library, which does not work.
    """
    path, request = Path(__file__).with_name(LOOP_LIBRARY), LOOP.value()
    if request is not None and request not in LOOPS:
        raise UsageError(f"{LOOP.name} must be one of {', '.join(LOOPS)}, not {request!r}; or unset it")
    if request == "python":
        _LOG.info("loop: python, because %s asks for it", LOOP.name)
        return None
    try:
        if not path.exists():
            raise DeviceError(f"{LOOP_LIBRARY} was not built; with a C++ compiler on the PATH, {install_again()}")
        return Loop(path)
    except DeviceError as error:
        if request:
            raise
        _LOG.warning("%s (until then rounds run in Python, which takes more time)", error)
        return None
