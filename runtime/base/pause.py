"""A signal to rounds that run without Python."""

from __future__ import annotations

import ctypes

__all__ = ["Pause"]


class Pause:
    """Ends a call of the compiled loop after the round that is running, so that Python looks at what has changed.

    Any thread may set it. The thread that runs the rounds clears it, before it looks.

    Members:
        address: address of an int32, which is not 0 while the signal is set.
    """

    def __init__(self) -> None:
        self._flag = ctypes.c_int32(0)
        self.address = ctypes.addressof(self._flag)

    def set(self) -> None:
        """End the call that is running, and begin no second round in the next one."""
        self._flag.value = 1

    def clear(self) -> None:
        """Let calls have several rounds again."""
        self._flag.value = 0
