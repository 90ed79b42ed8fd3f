"""Start a server's process on a free port of this machine, and wait until it is ready."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from edgedec.errors import DeviceError

__all__ = ["HOST", "ServerProcess", "free_port"]

HOST = "127.0.0.1"
_START_S = 180.0  # seconds in which a server must be ready; the first start of a model may have to prepare files
_END_S = 20.0  # seconds in which a server must end


def free_port() -> int:
    """Return a port that no program listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """A server that answers ``/health`` with 200 once it is ready. It ends with the ``with`` block.

    Parameters:
        name: name of the server in messages.
        command: its command line; ``{port}`` stands for the port.
    """

    def __init__(self, name: str, command: Sequence[str]) -> None:
        """Start the process and wait until the server is ready.

        Raises:
            DeviceError: the process ends, or is not ready in time; the message has its last words.
        """
        self.name, self.port = name, free_port()
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by close()
        words = [word.replace("{port}", str(self.port)) for word in command]
        self._process = subprocess.Popen(words, stdout=self._log, stderr=subprocess.STDOUT)
        try:
            self._await_ready()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def _await_ready(self) -> None:
        end = time.monotonic() + _START_S
        while not self._is_ready():
            if self._process.poll() is not None:
                raise DeviceError(f"{self.name} has ended with code {self._process.returncode}:\n{self._last_words()}")
            if time.monotonic() > end:
                raise DeviceError(f"{self.name} is not ready after {_START_S:g} seconds:\n{self._last_words()}")
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def _last_words(self) -> str:
        self._log.seek(0)
        return "\n".join(self._log.read().splitlines()[-8:])

    def get(self, path: str) -> Any:
        """Return the JSON of an endpoint.

        Raises:
            DeviceError: the status is not 200.
        """
        connection = http.client.HTTPConnection(HOST, self.port, timeout=_START_S)
        connection.request("GET", path, headers={"Connection": "close"})
        response = connection.getresponse()
        if response.status != 200:
            raise DeviceError(f"{self.name} answers {response.status}: {response.read(400).decode(errors='replace')}")
        return json.load(response)

    def post(self, path: str, body: Any) -> http.client.HTTPResponse:
        """Send a request and return the response, whose connection closes with it.

        Raises:
            DeviceError: the status is not 200.
        """
        connection = http.client.HTTPConnection(HOST, self.port, timeout=_START_S)
        headers = {"Content-Type": "application/json", "Connection": "close"}
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise DeviceError(f"{self.name} answers {response.status}: {response.read(400).decode(errors='replace')}")
        return response

    def close(self) -> None:
        """End the process."""
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
