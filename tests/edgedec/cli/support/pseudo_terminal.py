"""Run a command with a person's keys."""

from __future__ import annotations

import os
import pty
import select
import sys
import time
from pathlib import Path

import pytest

PATIENCE_S = 30.0


class PseudoTerminal:
    """Run a command on a pseudo-terminal, where Ctrl-C is a key."""

    def __init__(self, *args: str, term: str = "dumb") -> None:
        self.process, self._master = pty.fork()
        if self.process == 0:
            os.execvpe(sys.executable, [sys.executable, *args], os.environ | {"TERM": term, "PYTHONUTF8": "1"})
        self._seen = b""

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def expect(self, text: str) -> None:
        """Read until ``text`` appears, and drop the output up to its end."""
        end = time.monotonic() + PATIENCE_S
        while text.encode() not in self._seen:
            ready, _, _ = select.select([self._master], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"{text!r} did not come, but: {self._seen[-500:]!r}"
            self._seen += self._read()
        self._seen = self._seen.partition(text.encode())[2]

    def settle(self) -> None:
        """Wait until the command sleeps, that is, waits for a key.

        CPython sees a signal that comes between the echo and its next select() only with the next key: no person is so fast.
        """
        stat, end, asleep = Path(f"/proc/{self.process}/stat"), time.monotonic() + PATIENCE_S, 0
        while asleep < 10 and time.monotonic() < end:
            time.sleep(0.03)
            state = stat.read_text().rpartition(")")[2].split()[0] if stat.exists() else "S"
            asleep = asleep + 1 if state == "S" else 0

    def _read(self) -> bytes:
        try:
            return os.read(self._master, 4096)
        except OSError:  # Linux reports so that the other side is closed
            pytest.fail(f"the command ended; last seen: {self._seen[-500:]!r}")

    def rest(self) -> str:
        """Return all output until the command ends."""
        while True:
            try:
                read = os.read(self._master, 4096)
            except OSError:
                read = b""
            if not read:
                return self._seen.decode()
            self._seen += read

    def exit_code(self) -> int:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            process, status = os.waitpid(self.process, os.WNOHANG)
            if process:
                self.process = 0
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        pytest.fail("the command did not end")

    def close(self) -> None:
        os.close(self._master)  # the terminal hangs up
        if self.process:
            os.waitpid(self.process, 0)
