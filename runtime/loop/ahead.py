"""A thread of the library that runs rounds while Python handles the tokens of those before."""

from __future__ import annotations

import threading
import weakref
from ctypes import PyDLL, c_void_p
from typing import Any

from edgedec.runtime.loop import Loop
from edgedec.runtime.loop.rounds import RoundsCall

__all__ = ["RoundsAhead"]


class RoundsAhead:
    """A thread that runs the rounds of one call at a time.

    Parameters:
        library: the library.

    Members:
        call: the call whose rounds run; None: none run.
    """

    def __init__(self, library: Loop) -> None:
        self._library = library
        handle = library.function("edgedec_loop_ahead_open")()
        if handle is None:
            library.check(-1)
        self._handle: int = handle
        self._calls: list[RoundsCall] = []  # kept alive by the thread, too
        thread = self._thread = threading.Thread(
            target=_serve,
            args=(library.function("edgedec_loop_ahead_serve"), handle, self._calls),
            name="edgedec-rounds",
            daemon=True,  # the finalizer ends it, also at the end of the program
        )
        thread.start()
        weakref.finalize(self, _close, library, handle, thread)
        # This function must not release the interpreter's lock, because the pass would wait until it has the lock again.
        self._announce = PyDLL(str(library.path)).edgedec_loop_ahead_announce
        self._announce.argtypes, self._announce.restype = (c_void_p,), None

    @property
    def call(self) -> RoundsCall | None:
        """The call whose rounds run, or have finished and were not taken; None: there is none."""
        return self._calls[0] if self._calls else None

    def begin(self, call: RoundsCall, window: int) -> None:
        """Start to run the rounds of a call, until a text ends, a limit is reached, or ``stop`` is called.

        Args:
            call: the call.
            window: number of finished rounds after which the thread waits until ``take`` is called.

        Raises:
            EdgedecError: the arguments do not fit each other, or another call runs.
        """
        handle, announce = self._handle, self._announce
        self._calls[:] = [call]
        call.inputs.runner.announce = lambda: announce(handle)
        self._library.call("edgedec_loop_ahead_begin", handle, call.address, window)

    def take(self, rounds: int) -> tuple[int, bool]:
        """Wait for a number of finished rounds, or for the end of the call.

        Returns:
            The number of rounds, and whether further ones follow.

        Raises:
            EdgedecError: the rounds failed otherwise than in the pass.
        """
        count, running = divmod(self._library.call("edgedec_loop_ahead_take", self._handle, rounds), 2)
        return count, running == 1

    def stop(self, *, wait: bool = True) -> None:
        """End the call after the round that runs now. Rounds that have finished can still be taken.

        With ``wait`` the target is free afterwards. In the thread that runs the rounds, nothing is waited for.
        """
        wait = wait and threading.current_thread() is not self._thread
        self._library.function("edgedec_loop_ahead_stop")(self._handle, wait)

    def discard(self) -> None:
        """End the call. Its rounds cannot be taken any more."""
        self.stop()
        if self._calls:
            self._calls[0].inputs.runner.announce = None
            self._calls.clear()


def _serve(serve: Any, handle: int, calls: list[RoundsCall]) -> None:
    """Run rounds until the object is closed. ``calls`` keeps the arrays of the last call until then."""
    serve(handle)
    calls.clear()


def _close(library: Loop, handle: int, thread: threading.Thread) -> None:
    alone = threading.current_thread() is thread  # the last reference to the target was that of its pass
    library.function("edgedec_loop_ahead_stop")(handle, not alone)
    library.function("edgedec_loop_ahead_close")(handle)
    if not alone:
        thread.join()
