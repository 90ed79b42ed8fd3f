"""Where independent pieces of work run: processes of this machine, or a cluster.

A plug-in is a file here with ``create(workers)``; its name is what ``--executor`` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Protocol, Self, TypeVar

from edgedec.errors import UsageError
from edgedec.plugins import load, names
from edgedec.progress import Progress, silent

__all__ = ["Executor", "executor_names", "open_executor"]

A = TypeVar("A")
R = TypeVar("R")


class Executor(Protocol):
    """Runs a function on items elsewhere; a context manager that ends what it started.

    Members:
        workers: items that run at the same time at most.
    """

    workers: int

    def map(
        self, function: Callable[[A], R], items: Iterable[A], *, progress: Progress = silent, label: str = "items"
    ) -> Iterator[R]:
        """The results in the order of the items; nothing runs before the first one is asked for.

        Items are taken as workers get free, a few ahead of the result that is waited for, so they may be many and large. A
        failing item raises its own exception when its turn comes, with the worker's traceback as a note; those that are
        running then are interrupted (their ``finally`` runs), and nothing else is begun. So does closing the iterator, and
        Ctrl-C. Every item runs once at most.

        Args:
            function, items: what pickle takes; a function is known by its module and name, which workers import.
            progress: told ``label``, how many are done, in any order, and of how many; only where ``items`` has a length.

        Raises:
            EdgedecError: a worker ended while it had an item (killed, out of memory), or a result cannot be pickled; names
                the item.
            UsageError: the executor is closed, or another map of it goes on.
        """

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def executor_names() -> list[str]:
    """What ``open_executor`` and ``--executor`` take."""
    return names(__name__)


def open_executor(name: str = "local", *, workers: int = 0) -> Executor:
    """An executor, to be used in a ``with`` statement.

    Args:
        workers: 0: one for each core that this process, or the cluster, has.

    Raises:
        UsageError: an unknown name, or workers below 0.
        ToolError: what it needs is not installed.
        DeviceError: no cluster answers.
    """
    if workers < 0:
        raise UsageError(f"workers must be at least 1, or 0 for one per core, not {workers}")
    made: Executor = load(__name__, name, kind="executors").create(workers)
    return made
