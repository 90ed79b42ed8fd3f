"""Commands over a serial line that loses bytes: numbered, checked, several under way at once, sent again when need be."""

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

__all__ = ["Link"]

_PATIENCE_S, _PSEUDO_PATIENCE_S = 0.5, 10.0  # unless another is given; behind a pseudo-terminal there is a simulation
_FIRST_PATIENCE_S = 2.0  # at most then, to find out whether anybody is there
_PSEUDO_MAJORS = range(136, 144)  # of Linux' pseudo-terminals, on the host's side
_TRIES = 6  # of one command, each waiting longer than the one before
_MOST_UNDERWAY = 64  # commands; a device tells old from new by half of the sequence numbers
_MOST_NOISE = 4 * MOST_FRAME


class Link:
    """One device behind a serial port.

    Args:
        port: of the operating system; a pseudo-terminal will do.
        baud: 8 bits, no parity, 1 stop bit, no flow control.
        patience_s: of the host's time without an answer, after which a command is sent again; 0: half a second, or more
            behind a pseudo-terminal.

    Members:
        port: its path.
        identity: of the device.
        patience_s: see above.
        pseudo: the port is a pseudo-terminal, which no board is behind.
        retries: frames that were sent again.

    Raises:
        DeviceError: there is no such port, it is none, or nobody answers.
        UsageError: the operating system has no such rate.
    """

    def __init__(self, port: Path, baud: int, patience_s: float) -> None:
        if not 0 <= patience_s < math.inf:
            raise UsageError(f"patience_s must be 0 or more, not {patience_s!r}")
        self._file, self.pseudo = _opened(port, baud)
        self.port, self._baud = port, baud
        self.patience_s = patience_s or (_PSEUDO_PATIENCE_S if self.pseudo else _PATIENCE_S)
        self._first_patience_s = patience_s or min(self.patience_s, _FIRST_PATIENCE_S)
        self._received = bytearray()
        self._sequence, self._lost, self.retries = 0, True, 0
        try:
            self.identity = self._identify()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """A second time does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def ask(self, command: LinkCommand, content: bytes = b"") -> bytes:
        """One command's answer."""
        (answer,) = self.exchange([(command, content)])
        return answer

    def exchange(self, commands: Iterable[tuple[LinkCommand, bytes]]) -> Iterator[bytes]:
        """The answers to all of them, in order; each was executed once, in order.

        Whoever does not take all answers, by an exception for instance, leaves the rest: some may have been executed, and
        the next exchange begins anew.

        Raises:
            DeviceError: no answer, or the device refuses.
        """
        if self._lost:
            self._identify()
        self._lost = True
        waiting: deque[tuple[int, LinkCommand, bytes, bytes]] = deque()  # sequence, command, content, frame
        source, more = iter(commands), True
        tries, sent, again = 0, 0, False  # sent: bytes under way
        while more or waiting:
            room = self.identity.receive_bytes - 2 * MOST_FRAME  # each byte may be two on the wire
            while more and len(waiting) < _MOST_UNDERWAY and (not waiting or sent <= room):
                one = next(source, None)
                if one is None:
                    more = False
                    break
                command, content = one
                wire = frame(bytes((command, self._sequence)) + content)
                waiting.append((self._sequence, command, content, wire))
                self._sequence = (self._sequence + 1) % 256
                self._write(wire)
                sent += len(wire)
            if not waiting:
                break
            answer = self._next_answer(self.patience_s * (1 + tries))
            position = next((n for n, one in enumerate(waiting) if answer and one[0] == answer[1]), None)
            astray = answer is not None and position is not None and (position > 0 or answer[-1] == Status.ORDER)
            if answer is None or (astray and not again):
                # Nothing came, or something behind it: one on the way here or back was lost. All go again, from it on; what
                # still comes of the first time tells nothing.
                again = True
                tries += 1
                if tries > _TRIES:
                    raise self._silence(waiting[0][1])
                self._drain()
                for _, _, _, wire in waiting:
                    self.retries += 1
                    self._write(wire)
                continue
            if astray or position is None or answer[0] != waiting[0][1] | 0x80:
                continue  # a late answer to what was asked twice
            _, command, content, wire = waiting.popleft()
            sent, tries, again = sent - len(wire), 0, False
            if answer[-1] != Status.OK:
                raise self._refusal(command, content, answer[-1])
            if not more and not waiting:
                self._lost = False
            yield answer[2:-1]
        self._lost = False

    def _identify(self) -> Identity:
        """Both sides count from here on."""
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
        """The next whole frame; None: none within that time."""
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
        while data:
            _, ready, _ = select.select([], [self._file], [], self.patience_s * _TRIES)
            if not ready:
                raise DeviceError(f"{self.port} takes no more bytes; {self._again()}")
            try:
                data = data[os.write(self._file, data) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise self._gone(str(error.strerror)) from error

    def _drain(self) -> None:
        """Forgets what came so far."""
        self._received.clear()
        while select.select([self._file], [], [], 0)[0]:
            self._read()

    def _gone(self, why: str) -> DeviceError:
        if self.pseudo:
            return DeviceError(f"{self.port} is gone ({why}): has the simulation ended? {self._again()}")
        return DeviceError(
            f"{self.port} is gone ({why}): was the board unplugged? plug it in and open the device again"
        )

    def _again(self) -> str:
        """What to do where a board would be plugged in anew."""
        if self.pseudo:
            return "start it again, and give the path that it prints"
        return "unplug the board and plug it in again"

    def _silence(self, command: LinkCommand) -> DeviceError:
        asked = f"no answer from {self.port} to {command.name.lower()}, sent {_TRIES} times"
        if self.pseudo:
            return DeviceError(
                f"{asked}; check that the simulation behind it runs: edgedec simulate -m MODEL --terminal"
            )
        return DeviceError(
            f"{asked}; check that the board's bitstream is loaded and its baud rate is {self._baud}; give another one as "
            f"uart:{self.port},baud=N"
        )

    def _refusal(self, command: LinkCommand, content: bytes, status: int) -> DeviceError:
        what = {
            Status.COMMAND: "does not know it",
            Status.ARGUMENT: "cannot do it with these arguments",
            Status.BUS: "found nothing at that address",
        }.get(Status(status) if status in list(Status) else Status.ORDER, f"answers {status}")
        return DeviceError(f"{self.port}: {command.name.lower()} {content[:16].hex()} was refused: the device {what}")


def _opened(port: Path, baud: int) -> tuple[int, bool]:
    """A file of raw bytes, and whether it is a pseudo-terminal, which has no rate."""
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
    """That may open it."""
    try:
        return port.group()
    except (OSError, KeyError):
        return "dialout"
