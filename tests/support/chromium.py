"""A headless Chromium, driven over a pipe with the DevTools protocol, which needs no further package."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_SECONDS = 30.0  # maximum time of a command, and of what a test waits for
# Chromium reads commands from the file with the number 3 and writes answers to 4.
_START = (
    "import fcntl, os, sys; r, w = (fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3]); "
    "os.dup2(r, 3); os.dup2(w, 4); os.execvp(sys.argv[3], sys.argv[3:])"
)
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--no-proxy-server",
    "--remote-debugging-pipe",
)
_WITHOUT_GPU = ("--disable-gpu",)
_SOFTWARE_GPU = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader")  # WebGPU on the processor


class Page:
    """A tab of the browser.

    Members:
        complaints: uncaught errors, and what the browser refused to load.
        requests: addresses that the tab asked for, as far as ``Network.enable`` was called.
    """

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers, self._buffer = commands, answers, b""
        self._count, self._session = 0, ""
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Accessibility"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._count += 1
        number = self._count
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self) -> dict[str, Any]:
        until = time.monotonic() + _SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, until - time.monotonic()))
            assert ready, "Chromium does not answer"
            self._buffer += os.read(self._answers, 1 << 16)
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        if message.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(message["params"]["exceptionDetails"]["text"])
        if message.get("method") == "Log.entryAdded":
            self.complaints.append(message["params"]["entry"]["text"])
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        return message

    def run(self, script: str) -> Any:
        """Return the value of an expression, or of the promise that it is."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, condition: str, seconds: float = _SECONDS) -> None:
        """Wait until an expression is true, ``seconds`` at most."""
        until = time.monotonic() + seconds
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < until, f"{condition}; {self.complaints}"
            time.sleep(0.05)

    def open(self, url: str) -> None:
        """Load a page."""
        self.run("globalThis.isLeft = true")
        self.call("Page.navigate", url=url)
        self.wait("!globalThis.isLeft && document.readyState === 'complete' && location.href !== 'about:blank'")

    def key(self, name: str, text: str = "", modifiers: int = 0) -> None:
        """Press a key."""
        codes = {"Enter": 13, "Escape": 27, "Tab": 9}
        common = {"key": name, "windowsVirtualKeyCode": codes[name], "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text: str) -> None:
        """Write a text into the element that has the focus."""
        self.call("Input.insertText", text=text)


def find_chromium() -> str:
    """Return the path of the browser, or skip the test."""
    program = next((path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip("there is no chromium; apt-get install chromium")
    return program


@contextmanager
def chromium(program: str, folder: Path, *, webgpu: bool = False) -> Iterator[Page]:
    """Run the browser for the time of the block, with ``folder`` as its profile; ``webgpu`` gives it a software GPU."""
    command_end, commands = os.pipe()
    answers, answer_end = os.pipe()
    options = (*_OPTIONS, *(_SOFTWARE_GPU if webgpu else _WITHOUT_GPU))
    arguments = [program, *options, f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(
        [sys.executable, "-c", _START, str(command_end), str(answer_end), *arguments],
        pass_fds=(command_end, answer_end),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(folder)},
    )
    os.close(command_end)
    os.close(answer_end)
    try:
        yield Page(commands, answers)
    finally:
        os.close(commands)
        os.close(answers)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
