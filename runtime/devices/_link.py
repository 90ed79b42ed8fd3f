"""Commands over a serial line that may lose bytes.

Commands are numbered and have checksums; several are in flight at a time, and unanswered commands are sent again.
"""

from __future__ import annotations

import errno
import math
import os
import select
import termios
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from edgedec.errors import DeviceError, UsageError
from edgedec.hw.isa.link_protocol import END, MOST_FRAME, Identity, LinkCommand, Status, frame, opened
from edgedec.runtime.devices._latency import ask_low_latency

__all__ = ["Link", "UnmetError"]

_PATIENCE_S, _PSEUDO_PATIENCE_S = 0.5, 10.0  # default patience, and that for pseudo-terminals, which simulations use
_FIRST_PATIENCE_S = 2.0  # upper bound of the default patience for the first answer
_PSEUDO_MAJORS = range(136, 144)  # major device numbers of Linux's pseudo-terminals, on the host's side
_TRIES = 6  # attempts for one command, each with a longer patience than the previous one
_MOST_IN_FLIGHT = 64  # commands in flight; a device distinguishes old from new by half of the sequence numbers
_MOST_NOISE = 4 * MOST_FRAME  # received bytes without a frame's end that are kept


class UnmetError(DeviceError):
    """A RUN ended at an EXPECT.

    Members:
        found: data of its items, the unexpected value last.
    """

    def __init__(self, found: bytes) -> None:
        super().__init__("a register has another value than expected")
        self.found = found


class Link:
    """The link to one device on a serial port.

    Args:
        port: path of a serial port or of a pseudo-terminal.
        baud: baud rate, with 8 data bits, no parity, 1 stop bit and no flow control.
        patience_s: seconds of host time without an answer after which commands are sent again; 0: half a second, or ten
            seconds on a pseudo-terminal.

    Members:
        port: path of the port.
        identity: identity of the device.
        patience_s: patience in use.
        pseudo: True if the port is a pseudo-terminal, which belongs to a simulation.
        retries: number of frames that were sent again.
        round_trips: number of times that an answer came to frames that were sent after the answer before it.

    Raises:
        DeviceError: the port does not exist, is not a serial port, or no device answers.
        UsageError: the operating system does not support the baud rate.
    """

    def __init__(self, port: Path, baud: int, patience_s: float) -> None:
        if not 0 <= patience_s < math.inf:
            raise UsageError(f"patience_s must be 0 or more, not {patience_s!r}")
        self._file, self.pseudo = _open_port(port, baud)
        self.port, self._baud = port, baud
        self.patience_s = patience_s or (_PSEUDO_PATIENCE_S if self.pseudo else _PATIENCE_S)
        self._first_patience_s = patience_s or min(self.patience_s, _FIRST_PATIENCE_S)
        self._received = bytearray()
        self._sequence, self._lost, self.retries = 0, True, 0
        self.round_trips, self._asks = 0, False  # ``_asks``: something was sent since the last answer
        try:
            self.identity = self._identify()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the port. A second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def ask(self, command: LinkCommand, content: bytes = b"") -> bytes:
        """Send one command and return its answer."""
        (answer,) = self.exchange([(command, content)])
        return answer

    def exchange(self, commands: Iterable[tuple[LinkCommand, bytes]]) -> Iterator[bytes]:
        """Send commands and yield their answers in order. The device executes each command once, in order.

        If the caller stops before the last answer, because of an exception for example, some of the other commands may have
        been executed, and the next exchange synchronizes with the device again.

        Raises:
            UnmetError: a RUN found another value than it expected.
            DeviceError: the device does not answer, or refuses a command.
        """
        if self._lost:
            self._identify()
        self._lost = True
        pending: deque[tuple[int, LinkCommand, bytes, bytes]] = deque()  # sequence, command, content, frame
        source, more = iter(commands), True
        tries, in_flight, resent = 0, 0, False  # in_flight: bytes of the pending frames
        while more or pending:
            room = self.identity.receive_bytes - 2 * MOST_FRAME  # escaping may turn each byte into two
            while more and len(pending) < _MOST_IN_FLIGHT and (not pending or in_flight <= room):
                item = next(source, None)
                if item is None:
                    more = False
                    break
                command, content = item
                wire = frame(bytes((command, self._sequence)) + content)
                pending.append((self._sequence, command, content, wire))
                self._sequence = (self._sequence + 1) % 256
                self._write(wire)
                in_flight += len(wire)
            if not pending:
                break
            answer = self._next_answer(self.patience_s * (1 + tries))
            position = next((n for n, item in enumerate(pending) if answer and item[0] == answer[1]), None)
            out_of_order = answer is not None and position is not None and (position > 0 or answer[-1] == Status.ORDER)
            if answer is None or (out_of_order and not resent):
                # There is no answer, or one to a later command: a frame was lost in one direction. Send all pending frames
                # again. Out-of-order answers that still arrive belong to the first transmission and are ignored.
                resent = True
                tries += 1
                if tries > _TRIES:
                    raise self._silence(pending[0][1])
                self._drain()
                for _, _, _, wire in pending:
                    self.retries += 1
                    self._write(wire)
                continue
            if out_of_order or position is None or answer[0] != pending[0][1] | 0x80:
                continue  # a late answer to a frame that was sent twice
            _, command, content, wire = pending.popleft()
            in_flight, tries, resent = in_flight - len(wire), 0, False
            self.round_trips, self._asks = self.round_trips + self._asks, False
            if answer[-1] == Status.EXPECTATION:
                raise UnmetError(answer[2:-1])
            if answer[-1] != Status.OK:
                raise self._refusal(command, content, answer[-1])
            if not more and not pending:
                self._lost = False
            yield answer[2:-1]
        self._lost = False

    def _identify(self) -> Identity:
        """Synchronize the sequence numbers of both sides and return the device's identity."""
        self._drain()
        for attempt in range(_TRIES):
            sequence, self._sequence = self._sequence, (self._sequence + 1) % 256
            self._write(frame(bytes((LinkCommand.IDENTIFY, sequence))))
            end = time.monotonic() + self._first_patience_s * (1 + attempt)
            while (left := end - time.monotonic()) > 0:
                answer = self._next_answer(left)
                if answer is not None and answer[:2] == bytes((LinkCommand.IDENTIFY | 0x80, sequence)):
                    identity = Identity.unpacked(answer[2:-1])
                    self._lost = False
                    return identity
        raise self._silence(LinkCommand.IDENTIFY)

    def _next_answer(self, patience_s: float) -> bytes | None:
        """Return the next whole frame; None if none arrives within ``patience_s``."""
        end_s = time.monotonic() + patience_s
        while True:
            while (end := self._received.find(END)) >= 0:
                between = bytes(self._received[:end])
                del self._received[: end + 1]
                content = opened(between) if between else None
                if content is not None and len(content) > 2:
                    return content
            if len(self._received) > _MOST_NOISE:
                self._received.clear()
            left_s = end_s - time.monotonic()
            if left_s <= 0 or not select.select([self._file], [], [], left_s)[0]:
                return None
            self._received += self._read()

    def _read(self) -> bytes:
        try:
            data = os.read(self._file, 1 << 16)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise self._gone(str(error.strerror)) from error
        if not data:
            raise self._gone("end of file")
        return data

    def _write(self, data: bytes) -> None:
        self._asks = True
        while data:
            _, ready, _ = select.select([], [self._file], [], self.patience_s * _TRIES)
            if not ready:
                raise DeviceError(f"{self.port} accepts no more bytes; {self._again()}")
            try:
                data = data[os.write(self._file, data) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise self._gone(str(error.strerror)) from error

    def _drain(self) -> None:
        """Discard everything that was received so far."""
        self._received.clear()
        while select.select([self._file], [], [], 0)[0]:
            self._read()

    def _gone(self, reason: str) -> DeviceError:
        if self.pseudo:
            return DeviceError(f"{self.port} is gone ({reason}): has the simulation ended? {self._again()}")
        return DeviceError(
            f"{self.port} is gone ({reason}): was the board unplugged? plug it in and open the device again"
        )

    def _again(self) -> str:
        """Return how to reconnect the board or the simulation."""
        if self.pseudo:
            return "start it again, and give the path that it prints"
        return "unplug the board and plug it in again"

    def _silence(self, command: LinkCommand) -> DeviceError:
        problem = f"no answer from {self.port} to {command.name.lower()}, sent {_TRIES} times"
        if self.pseudo:
            return DeviceError(f"{problem}; check that its simulation runs: edgedec simulate -m MODEL --terminal")
        return DeviceError(
            f"{problem}; check that the board's bitstream is loaded and its baud rate is {self._baud}; give another one as "
            f"uart:{self.port},baud=N"
        )

    def _refusal(self, command: LinkCommand, content: bytes, status: int) -> DeviceError:
        reason = {
            Status.COMMAND: "does not know it",
            Status.ARGUMENT: "cannot do it with these arguments",
            Status.BUS: "found nothing at that address",
        }.get(Status(status) if status in list(Status) else Status.ORDER, f"answers {status}")
        return DeviceError(f"{self.port}: {command.name.lower()} {content[:16].hex()} was refused: the device {reason}")


def _open_port(port: Path, baud: int) -> tuple[int, bool]:
    """Open a port for raw bytes. Return its file descriptor, and whether it is a pseudo-terminal, which has no rate."""
    try:
        file = os.open(port, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise DeviceError(f"there is no {port}; plug the board in, and look for it with: ls /dev/ttyUSB*") from None
    except PermissionError:
        raise DeviceError(
            f"{port} may not be opened; join its group and log in again: sudo usermod -aG {_group(port)} $USER"
        ) from None
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise DeviceError(f"another program has {port}; end it, fuser -v {port} names it") from error
        raise DeviceError(f"{port} cannot be opened: {error.strerror}; give the path of a serial port") from error
    try:
        pseudo = os.major(os.fstat(file).st_rdev) in _PSEUDO_MAJORS
        speed = _speed(baud, pseudo)
        mode = termios.tcgetattr(file)
        mode[0] = mode[1] = mode[3] = 0
        mode[2] = termios.CS8 | termios.CREAD | termios.CLOCAL
        mode[4] = mode[5] = speed
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        termios.tcsetattr(file, termios.TCSANOW, mode)
        if not pseudo:
            ask_low_latency(file, port)
    except termios.error as error:
        os.close(file)
        raise DeviceError(
            f"{port} is no serial port: {error.args[-1]}; give the path of one, as /dev/ttyUSB0"
        ) from error
    except BaseException:
        os.close(file)
        raise
    return file, pseudo


def _speed(baud: int, pseudo: bool) -> int:
    speed: int | None = getattr(termios, f"B{baud}", None)
    if speed is None and not pseudo:
        rates = sorted(int(name[1:]) for name in dir(termios) if name[0] == "B" and name[1:].isdigit())
        raise UsageError(f"a serial port here has no baud rate {baud}; it has {', '.join(map(str, rates[1:]))}")
    return termios.B38400 if speed is None else speed


def _group(port: Path) -> str:
    """Return the name of the group that may open the port."""
    try:
        return port.group()
    except (OSError, KeyError):
        return "dialout"
