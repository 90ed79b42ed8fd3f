"""Waiting for an accelerator's interrupt, by the operating system if possible, or else by polling the register.

In both cases the register decides. An interrupt that arrives too early, too late or for another reason costs one read of
the register, and a lost interrupt costs one time slice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import warnings
from collections.abc import Awaitable, Callable
from typing import Protocol

__all__ = ["HOST_CLOCK", "Interrupt", "WaitClock", "Waiter", "thread_loop"]

_LOG = logging.getLogger(__name__)
# Seconds between two reads of the register with interrupts, about the duration of a pass of the smallest useful model.
_SLICE_S = 0.01
_POLL_S = 100e-6  # seconds between two reads of the register without interrupts


class WaitClock(Protocol):
    """The clock of waits: the host's, or that of a simulated device."""

    def now(self) -> float:
        """Return monotonic seconds."""

    def sleep(self, seconds: float) -> None:
        """Block for at least ``seconds``."""

    async def pause(self, seconds: float) -> None:
        """Sleep for at least ``seconds`` while the event loop handles interrupts."""


class Interrupt(Protocol):
    """The part of pynq.Interrupt that is used here."""

    def wait(self) -> Awaitable[object]:
        """Wait until the interrupt line is high."""


class _HostClock:
    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


HOST_CLOCK: WaitClock = _HostClock()


def thread_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this thread, which pynq uses too; a new one if there is none or it is closed."""
    loop = None
    with warnings.catch_warnings(), contextlib.suppress(RuntimeError):
        # Depending on its version, Python creates a loop, creates one with a warning, or raises RuntimeError.
        warnings.simplefilter("ignore")
        loop = asyncio.get_event_loop()
    if loop is None or loop.is_closed():
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
    return loop


def _in_a_loop() -> bool:
    """Return whether an event loop is running in this thread, as in a notebook; then no other loop can run."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Waiter:
    """A waiter for the interrupt of one device.

    Args:
        is_high: reads the device's registers and returns whether the interrupt is high.
        interrupt: the interrupt; None polls the registers.
        loop: event loop in which ``interrupt`` was created.
        clock: measures the time.
    """

    def __init__(
        self,
        is_high: Callable[[], bool],
        interrupt: Interrupt | None,
        loop: asyncio.AbstractEventLoop,
        clock: WaitClock = HOST_CLOCK,
    ) -> None:
        self._is_high, self._interrupt, self._loop, self._clock = is_high, interrupt, loop, clock

    def wait(self, timeout_s: float) -> bool:
        """Wait until the interrupt is high, for at most ``timeout_s`` seconds, and return whether it is.

        Ctrl-C may interrupt this anywhere.
        """
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
        except (OSError, RuntimeError) as error:  # the interrupt's file has disappeared, or another overlay was loaded
            _LOG.warning("interrupts are not delivered any more (%s); the registers are polled instead", error)
            self._interrupt = None
        finally:
            if not task.done():  # after Ctrl-C
                task.cancel()
                self._loop.run_until_complete(asyncio.gather(task, return_exceptions=True))

    async def _either(self, interrupt: Interrupt, seconds: float) -> None:
        """Wait for the interrupt or for the end of the time. The other wait is cancelled, also after Ctrl-C."""
        tasks = [asyncio.ensure_future(interrupt.wait()), asyncio.ensure_future(self._clock.pause(seconds))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
