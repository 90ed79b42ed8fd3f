"""Test waiting for an interrupt that comes, comes late, does not come, or does not exist."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from edgedec.runtime.devices._waiting import HOST_CLOCK, Waiter, thread_loop


class Line:
    """Model an interrupt line and its system; ``wait`` is that of pynq.Interrupt."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.high, self.waited, self._loop = False, 0, loop
        self.event = asyncio.Event()

    def raise_(self, *, tell: bool = True) -> None:
        self.high = True
        if tell:
            self._loop.call_soon_threadsafe(self.event.set)

    async def wait(self) -> None:
        self.waited += 1
        await self.event.wait()
        self.event.clear()


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield loop
    loop.close()
    asyncio.set_event_loop(None)


def later(seconds: float, act: Callable[[], object]) -> None:
    threading.Timer(seconds, act).start()


def test_an_interrupt_ends_the_wait(loop: asyncio.AbstractEventLoop) -> None:
    line = Line(loop)
    later(0.03, line.raise_)
    assert Waiter(lambda: line.high, line, loop).wait(10)
    assert line.waited >= 1


def test_a_lost_interrupt_costs_a_slice_of_time(loop: asyncio.AbstractEventLoop) -> None:
    line = Line(loop)
    later(0.03, lambda: line.raise_(tell=False))
    start = time.monotonic()
    assert Waiter(lambda: line.high, line, loop).wait(60)
    assert time.monotonic() - start < 30, "it did not wait for the interrupt until the end"


def test_a_spurious_interrupt_does_not_end_the_wait(loop: asyncio.AbstractEventLoop) -> None:
    """Check that the register, which says no, is read, and that the wait continues."""
    line = Line(loop)
    line.event.set()
    start = time.monotonic()
    assert not Waiter(lambda: line.high, line, loop).wait(0.05)
    assert time.monotonic() - start >= 0.05


def test_the_register_decides_at_once(loop: asyncio.AbstractEventLoop) -> None:
    assert Waiter(lambda: True, None, loop).wait(0)
    assert not Waiter(lambda: False, None, loop).wait(0)


def test_without_interrupts_the_register_is_polled(loop: asyncio.AbstractEventLoop) -> None:
    line = Line(loop)
    later(0.02, lambda: line.raise_(tell=False))
    assert Waiter(lambda: line.high, None, loop).wait(10)


def test_in_a_notebook_the_register_is_polled(loop: asyncio.AbstractEventLoop) -> None:
    """Check this because the thread's loop runs already there, and cannot run inside itself."""
    line = Line(loop)
    later(0.02, lambda: line.raise_(tell=False))

    async def cell() -> bool:
        return Waiter(lambda: line.high, line, loop).wait(10)

    assert loop.run_until_complete(cell())
    assert line.waited == 0


def test_failing_interrupts_are_replaced_by_polling(
    loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        async def wait(self) -> None:
            raise RuntimeError("Interrupt invalidated by Overlay change")

    line = Line(loop)
    later(0.02, lambda: line.raise_(tell=False))
    assert Waiter(lambda: line.high, Broken(), loop).wait(10)
    assert "interrupts are not delivered any more (Interrupt invalidated by Overlay change)" in caplog.text


def test_an_interrupted_wait_can_be_repeated(loop: asyncio.AbstractEventLoop) -> None:
    line, struck = Line(loop), list[int]()

    class Clock:
        now, sleep = staticmethod(time.monotonic), staticmethod(time.sleep)

        async def pause(self, seconds: float) -> None:
            if not struck:
                struck.append(1)
                raise KeyboardInterrupt
            await HOST_CLOCK.pause(seconds)

    waiter = Waiter(lambda: line.high, line, loop, Clock())
    with pytest.raises(KeyboardInterrupt):
        waiter.wait(10)
    assert not asyncio.all_tasks(loop)
    later(0.02, line.raise_)
    assert waiter.wait(10)


def test_a_thread_without_a_loop_gets_one() -> None:
    same_loops = []

    def run() -> None:
        first = thread_loop()
        same_loops.append(first is thread_loop())
        first.close()
        second = thread_loop()
        same_loops.append(not second.is_closed())
        second.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert same_loops == [True, True]
