"""Worker pools: independent pieces of work run in processes of this machine, or in a cluster.

A pool is a plug-in: a file of this folder with ``create(workers)``. Its name is the value of the option ``--pool``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TypeVar

from edgedec.errors import UsageError
from edgedec.plugins import load, names
from edgedec.progress import Progress, silent

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["WorkerPool", "open_pool", "pool_names"]

A = TypeVar("A")
R = TypeVar("R")


class WorkerPool(Protocol):
    """Run a function on items in workers. As a context manager, a pool ends the workers that it started.

    Members:
        workers: largest number of items that run at the same time.
    """

    workers: int

    def map(
        self, function: Callable[[A], R], items: Iterable[A], *, progress: Progress = silent, label: str = "items"
    ) -> Iterator[R]:
        """Yield the results in the order of the items; no item starts before the first result is requested.

        Items are taken as workers become free, only a few ahead of the result that is being waited for, so there may be
        many and large items. If an item fails, its own exception is raised when its turn comes, with the worker's
        traceback as a note; the items that are running at that time are interrupted (their ``finally`` blocks run), and
        no further item starts. Closing the iterator and Ctrl-C have the same effect. No item runs twice.

        Args:
            function, items: values that pickle accepts; a function is pickled as its module and name, and the workers
                import it.
            progress: called with ``label``, the number of items that are done, in any order, and their total; it is only
                called if ``items`` has a length.

        Raises:
            EdgedecError: a worker ended while it had an item (killed, out of memory), or a result cannot be pickled; the
                message names the item.
            UsageError: the pool is closed, or another map of it has not ended.
        """

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def pool_names() -> list[str]:
    """Return the names that ``open_pool`` and ``--pool`` accept, sorted."""
    return names(__name__)


def open_pool(name: str = "local", *, workers: int = 0) -> WorkerPool:
    """Return a worker pool, to be used in a ``with`` statement.

    Args:
        name: a name of ``pool_names``.
        workers: number of workers; 0: one for each core that this process, or the cluster, has.

    Raises:
        UsageError: the name is unknown, or ``workers`` is below 0.
        ToolError: a package that the pool needs is not installed.
        DeviceError: no cluster answers.
    """
    if workers < 0:
        raise UsageError(f"workers must be at least 1, or 0 for one per core, not {workers}")
    pool: WorkerPool = load(__name__, name, kind="worker pools").create(workers)
    return pool
