"""Read what a run of a project's build.py says of its results, and compare it with them."""

from __future__ import annotations

import hashlib
import json
import reprlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from edgedec.errors import BundleError

__all__ = ["AGAIN", "read_facts"]

AGAIN = "remove results/ and run the build again"
_FACTS = "results/facts.json"


def read_facts(
    folder: Path,
    key: str,
    files: Collection[str],
    *,
    seed: int,
    is_good: Callable[[Mapping[str, Any]], bool] = lambda facts: True,
) -> dict[str, Any] | None:
    """Return the facts of the results that are there.

    Args:
        folder: the project.
        key: hash of all that its bitstream is made from.
        files: results besides the bitstream.
        seed: seed that is asked for.
        is_good: whether the members that only this flow has are of their types; it may raise what a wrong type raises.

    Returns:
        None if there are no results. Also None where the bitstream itself is gone, or what is damaged is of another seed: it
        is built, and takes its place.

    Raises:
        BundleError: the results are of another project, or damaged. A person may want to know, before an hour of work or
            where there are no tools.
    """
    path = folder / _FACTS
    if not path.is_file():
        return None
    facts = _checked(path, files, is_good)
    if facts["key"] != key:
        raise BundleError(f"{path} is of another build than this project; {AGAIN}")
    damaged = [folder / name for name, digest in facts["files"].items() if not _is_whole(folder / name, digest)]
    if damaged and (facts["seed"] != seed or not (folder / facts["bitstream"]).exists()):
        return None
    for file in damaged:
        raise BundleError(f"{file} {'was changed' if file.exists() else 'is missing'} since it was made; {AGAIN}")
    return facts


def _checked(path: Path, files: Collection[str], is_good: Callable[[Mapping[str, Any]], bool]) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_text("utf-8"))
        good = (
            isinstance(facts["key"], str)
            and type(facts["seed"]) is int
            and isinstance(facts["bitstream"], str)
            and {facts["bitstream"], *files} == set(facts["files"])
            and Path(facts["bitstream"]).name == facts["bitstream"]
            and all(isinstance(text, str) for text in [*facts["tools"].values(), *facts["files"].values()])
            and is_good(facts)
        )
        if not good:
            raise ValueError("a member is of another type")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BundleError(f"{path} is damaged: {reprlib.repr(str(error))}; {AGAIN}") from None
    assert isinstance(facts, dict)
    return facts


def _is_whole(path: Path, digest: str) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest
