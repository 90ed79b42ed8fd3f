"""The worker pool ``ray``: a Ray cluster.

The cluster is that of $RAY_ADDRESS, or the one that ``ray start`` made on this machine; if there is none, one is started
and ended with the pool. Each node needs the same version of edgedec and must see the same files under the same paths.
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
from edgedec.host.install_hint import install_extra
from edgedec.workers._calls import CallResult, call
from edgedec.workers._pools import InlinePool, ParallelPool

__all__ = ["create"]

_PATIENCE_S = 10.0  # seconds in which a cluster has to accept a connection


def create(workers: int) -> InlinePool:
    """Return a pool with this number of workers; 0: one for each core of the cluster.

    Raises:
        ToolError: Ray is not installed.
        DeviceError: no cluster can be reached or started.
    """
    # Ray reads both when it is imported. They switch off usage reports and warnings about variables of other devices.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise ToolError(f"--pool ray needs Ray; run: {install_extra('ray')} ({error})") from error
    return ParallelPool(_Cluster(ray, workers))


class _Cluster:
    """``CallRunner`` of remote tasks.

    No task is tried twice, because it may have written something already. An interrupted task ends at its next line of
    Python: Ray interrupts neither a sleep nor a computation.
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

    def finished(self, wait: bool) -> list[tuple[int, CallResult]]:
        running = list(self._running)
        ready, _ = self._ray.wait(running, num_returns=1, timeout=None if wait else 0)
        if ready:
            ready, _ = self._ray.wait(running, num_returns=len(running), timeout=0)
        return [(self._running.pop(reference), self._result(reference)) for reference in ready]

    def _result(self, reference: Any) -> CallResult:
        try:
            return CallResult(*self._ray.get(reference))
        except self._ray.exceptions.RayError as error:
            return CallResult(False, b"", lost=_ending(error))

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
    except Exception as error:  # Ray raises bare Exceptions, for example if a node takes too long to start
        text = " ".join(str(error).split())
        raise DeviceError(f"no Ray cluster could be reached or started: {text}; try --pool local") from error


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Restore the program's handler of SIGTERM: Ray's own prints its native stack and exits with 15."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        try:
            yield
        finally:
            if (
                before is not None and threading.current_thread() is threading.main_thread()
            ):  # other threads may not set handlers
                signal.signal(signal.SIGTERM, before)
    except SystemExit as error:
        if error.code == signal.SIGTERM and callable(before):  # the signal arrived meanwhile
            signal.raise_signal(signal.SIGTERM)
        raise


def _check_address(address: str) -> None:
    """Check that something listens at the address, because Ray itself would try for minutes.

    Raises:
        DeviceError: nothing does.
    """
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
    """Return the first sentence of an error of Ray."""
    text = " ".join(str(error).split()).split(". ")[0][:300]
    return f"was lost, {type(error).__name__}: {text}"
