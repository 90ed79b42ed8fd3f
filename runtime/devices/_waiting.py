"""Waiting for an accelerator's interrupt: by the operating system where that works, by looking at the register where not.

The register decides in any case. An interrupt that comes too early, too late or for something else costs a look, and one
that is lost a time slice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import warnings
from collections.abc import Awaitable, Callable
from typing import Protocol

__all__ = ["HOST_CLOCK", "Clock", "Interrupt", "Waiter", "thread_loop"]

_LOG = logging.getLogger(__name__)
_SLICE_S = 0.01  # between two looks where interrupts come; a pass of the smallest useful model takes as long
_POLL_S = 100e-6  # where there are none


class Clock(Protocol):
    """What a wait is measured with; the host's own, unless the device is a simulation."""

    def now(self) -> float:
        """Seconds from some moment on."""

    def sleep(self, seconds: float) -> None:
        """At least so long."""

    async def pause(self, seconds: float) -> None:
        """The same, while interrupts come in."""


class Interrupt(Protocol):
    """What pynq.Interrupt has."""

    def wait(self) -> Awaitable[object]:
        """Until the line is high."""


class _HostClock:
    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


HOST_CLOCK: Clock = _HostClock()


def thread_loop() -> asyncio.AbstractEventLoop:
    """This thread's event loop; a new one where it has none, or a closed one. pynq asks for it in the same way."""
    loop = None
    with warnings.catch_warnings(), contextlib.suppress(RuntimeError):
        warnings.simplefilter("ignore")  # by its version Python makes one, makes one and warns, or raises
        loop = asyncio.get_event_loop()
    if loop is None or loop.is_closed():
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
    return loop


def _in_a_loop() -> bool:
    """As in a notebook; none can be run in it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Waiter:
    """Args:
    is_high: looks at the device's registers.
    interrupt: None: there is none, and the registers are looked at again and again.
    loop: in which ``interrupt`` was made.
    """

    def __init__(
        self,
        is_high: Callable[[], bool],
        interrupt: Interrupt | None,
        loop: asyncio.AbstractEventLoop,
        clock: Clock = HOST_CLOCK,
    ) -> None:
        self._is_high, self._interrupt, self._loop, self._clock = is_high, interrupt, loop, clock

    def wait(self, timeout_s: float) -> bool:
        """Until the interrupt is high, at most so long; says whether it is. Ctrl-C may end it anywhere."""
        end = self._clock.now() + timeout_s
        while not self._is_high():
            left = end - self._clock.now()
            if left <= 0:
                return False
            self._pause(left)
        return True

    def _pause(self, seconds: float) -> None:
        if self._interrupt is None or self._loop.is_closed() or _in_a_loop():
            self._clock.sleep(min(seconds, _POLL_S))
            return
        task = self._loop.create_task(self._either(self._interrupt, min(seconds, _SLICE_S)))
        try:
            self._loop.run_until_complete(task)
        except (OSError, RuntimeError) as error:  # its file is gone, or another overlay was loaded
            _LOG.warning("interrupts do not come any more (%s); the registers are polled instead", error)
            self._interrupt = None
        finally:
            if not task.done():  # Ctrl-C
                task.cancel()
                self._loop.run_until_complete(asyncio.gather(task, return_exceptions=True))

    async def _either(self, interrupt: Interrupt, seconds: float) -> None:
        """Until the interrupt or the end of the time. What is left of the other is cancelled, also by Ctrl-C."""
        tasks = [asyncio.ensure_future(interrupt.wait()), asyncio.ensure_future(self._clock.pause(seconds))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
