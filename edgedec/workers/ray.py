"""A Ray cluster: the one of $RAY_ADDRESS, or that ``ray start`` made on this machine; without any, one for the occasion.

Each node needs edgedec, in the same version, and sees the same files by the same paths.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from edgedec.errors import DeviceError, ToolError
from edgedec.install_hint import install_extra
from edgedec.workers._calls import Outcome, call
from edgedec.workers._pooled import InlineExecutor, PooledExecutor

__all__ = ["create"]

_PATIENCE_S = 10.0  # for a cluster to take a connection


def create(workers: int) -> InlineExecutor:
    """An executor; 0 workers: one for each core of the cluster."""
    # Read when Ray is imported: nothing is reported to its makers, and nothing is said about variables for other devices.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise ToolError(f"--executor ray needs Ray; run: {install_extra('ray')} ({error})") from error
    return PooledExecutor(_Cluster(ray, workers))


class _Cluster:
    """``Pool`` of remote tasks. None is tried twice: what one has written is its own affair. An interrupted task ends with
    its next line of Python: Ray does not wake what sleeps or computes.
    """

    def __init__(self, ray: Any, workers: int) -> None:
        self._ray = ray
        self._mine = not ray.is_initialized()
        if self._mine:
            _connect(ray)
        self.workers = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._call = ray.remote(num_cpus=1, max_retries=0)(call)
        self._function: Any = None
        self._running: dict[Any, int] = {}

    def begin(self, function: bytes) -> None:
        self._function = self._ray.put(function)

    def start(self, number: int, item: bytes) -> None:
        self._running[self._call.remote(self._function, item)] = number

    def finished(self, wait: bool) -> list[tuple[int, Outcome]]:
        running = list(self._running)
        ready, _ = self._ray.wait(running, num_returns=1, timeout=None if wait else 0)
        if ready:
            ready, _ = self._ray.wait(running, num_returns=len(running), timeout=0)
        return [(self._running.pop(one), self._outcome(one)) for one in ready]

    def _outcome(self, reference: Any) -> Outcome:
        try:
            return Outcome(*self._ray.get(reference))
        except self._ray.exceptions.RayError as error:
            return Outcome(False, b"", lost=_ending(error))

    def cancel(self) -> None:
        running, self._running = list(self._running), {}
        for reference in running:
            self._ray.cancel(reference)

    def close(self) -> None:
        self.cancel()
        if self._mine:
            self._ray.shutdown()


def _connect(ray: Any) -> None:
    _check_address(os.environ.get("RAY_ADDRESS", ""))
    try:
        with _sigterm_kept():
            ray.init(logging_level=logging.ERROR, log_to_driver=False, include_dashboard=False)
    except Exception as error:  # Ray raises bare ones, of a node that took too long to start for instance
        said = " ".join(str(error).split())
        raise DeviceError(f"no Ray cluster could be reached or started: {said}; try --executor local") from error


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself, prints its native stack and exits with 15: what it means is the program's affair."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        try:
            yield
        finally:
            if before is not None and threading.current_thread() is threading.main_thread():  # others may set none
                signal.signal(signal.SIGTERM, before)
    except SystemExit as error:
        if error.code == signal.SIGTERM and callable(before):  # it came meanwhile
            signal.raise_signal(signal.SIGTERM)
        raise


def _check_address(address: str) -> None:
    """Whether anything listens there: Ray itself goes on trying for minutes."""
    host, colon, port = address.rpartition("://")[2].partition("/")[0].rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE_S).close()
    except (OSError, OverflowError) as error:
        raise DeviceError(
            f"no Ray cluster answers at RAY_ADDRESS={address}: {error}; correct it, or unset it to start one here"
        ) from error


def _ending(error: Exception) -> str:
    """The first sentence of what Ray says."""
    said = " ".join(str(error).split()).split(". ")[0][:300]
    return f"was lost, {type(error).__name__}: {said}"
