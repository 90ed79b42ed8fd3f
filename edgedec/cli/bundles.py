"""``edgedec list`` and ``edgedec remove``: the bundles in the cache folder."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.bundle.embedded import EMBEDDED
from edgedec.cli.console import counted, note, print_json, print_table
from edgedec.cli.options import Json, Verbose, option
from edgedec.errors import EdgedecError, UsageError
from edgedec.host.spelling import did_you_mean

if TYPE_CHECKING:
    from edgedec.cli._kept_bundles import KeptBundle

__all__ = ["list_bundles", "remove"]


def list_bundles(
    folder: Annotated[
        list[Path] | None,
        option("--folder", metavar="FOLDER", help="List the bundles in this folder, too; may be repeated."),
    ] = None,
    json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """List the embedded models, and the bundles in the cache folder."""
    from edgedec.cli._kept_bundles import bundles_in, cached_bundles
    from edgedec.host.paths import cache_folder

    found = [bundle for one in folder or () for bundle in bundles_in(one)]
    found = [*cached_bundles(), *found]
    made = {bundle.name for bundle in found if bundle.place == "embedded"}
    if json:
        entries = [_as_json(bundle) for bundle in found]
        print_json(
            {"cache": str(cache_folder()), "not_made": [name for name in EMBEDDED if name not in made]}
            | {"bundles": entries}
        )
        return
    _print(found, [name for name in EMBEDDED if name not in made])


def remove(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME...", help="Names of bundles in the cache folder, as `edgedec list` has them."),
    ],
    yes: Annotated[bool, option("-y", "--yes", help="Remove them without a question.")] = False,
    json: Json = False,
    verbose: Verbose = 0,
) -> None:
    """Remove bundles from the cache folder.

    An embedded model is made again when it is used. Folders elsewhere are never removed.
    """
    from edgedec.cli._kept_bundles import cached_bundles, kept_figures
    from edgedec.memory.byte_sizes import format_bytes

    chosen = _chosen(names, cached_bundles())
    total = sum(bundle.size_bytes for bundle in chosen)
    if not yes and not _agreed(f"remove {', '.join(bundle.name for bundle in chosen)} ({format_bytes(total)})?"):
        note("nothing was removed")
        if json:
            print_json({"removed": [], "bytes": 0})
        return
    if not yes:
        chosen = _chosen(names, cached_bundles())  # the answer may have taken minutes
        total = sum(bundle.size_bytes for bundle in chosen)
    for bundle in chosen:
        _remove(bundle.path, kept_figures(bundle))
    if json:
        print_json({"removed": [str(bundle.path) for bundle in chosen], "bytes": total})
    else:
        print(f"removed {counted(len(chosen), 'bundle')}, {format_bytes(total)}")


def _chosen(names: Sequence[str], cached: Sequence[KeptBundle]) -> list[KeptBundle]:
    """Return the bundles that are named, each once.

    Raises:
        UsageError: a name is none of the cache folder's bundles, or its folder holds other files.
        EdgedecError: a process uses one.
    """
    from edgedec.cli._kept_bundles import foreign_files, processes_using

    known = {bundle.name: bundle for bundle in cached} | {str(bundle.path): bundle for bundle in cached}
    chosen: list[KeptBundle] = []
    for name in names:
        bundle = known.get(name)
        if bundle is None:
            raise UsageError(f"nothing was removed: {_refusal(name, [one.name for one in cached])}")
        if others := foreign_files(bundle):
            raise UsageError(
                f"nothing was removed: {bundle.path} holds more than the bundle: {', '.join(others[:3])}; move that "
                "away first"
            )
        if users := processes_using(bundle.path):
            listed = ", ".join(map(str, users[:3]))
            raise EdgedecError(
                f"nothing was removed: {name} is in use by {'process' if len(users) == 1 else 'processes'} {listed}; end "
                f"{'it' if len(users) == 1 else 'them'} first"
            )
        if bundle not in chosen:
            chosen.append(bundle)
    return chosen


def _refusal(name: str, known: Sequence[str]) -> str:
    if name in EMBEDDED:
        return f"{name} has no bundle in the cache folder; it is made when it is first used"
    if os.path.lexists(name):
        return f"{name} is not in the cache folder, and edgedec removes nothing else; remove it yourself if you mean it"
    return (
        f"there is no bundle {name!r} in the cache folder{did_you_mean(name, known) or '; `edgedec list` shows them'}"
    )


def _agreed(question: str) -> bool:
    """Ask on the terminal.

    Raises:
        UsageError: there is none.
    """
    if not sys.stdin.isatty():
        raise UsageError("nothing was removed: there is no terminal to ask on; give --yes")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _remove(path: Path, figures: Path | None) -> None:
    """Remove a bundle's folder, and the figures beside it. It vanishes in one step, so that no process finds half of it.

    Raises:
        EdgedecError: it cannot be removed; what has lost no file is in its place again.
    """
    aside = None
    try:
        if figures is not None:
            figures.unlink(missing_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            path.rename(aside / path.name)
            _remove_or_put_back(aside / path.name, path)
        finally:
            with suppress(OSError):
                aside.rmdir()
    except OSError as error:
        why = f"{error.strerror}: {error.filename}"
        if aside is not None and aside.exists():
            raise EdgedecError(f"{path} was removed in part: {why}; remove {aside} yourself") from None
        raise EdgedecError(f"{path} was not removed: {why}") from None


def _remove_or_put_back(folder: Path, place: Path) -> None:
    before = sorted(os.listdir(folder))
    try:
        shutil.rmtree(folder)
    except OSError:
        if sorted(os.listdir(folder)) == before:
            folder.rename(place)
        raise


def _as_json(bundle: KeptBundle) -> dict[str, Any]:
    return {
        "name": bundle.name,
        "path": str(bundle.path),
        "place": bundle.place,
        "method": bundle.method or None,
        "bytes": bundle.size_bytes,
        "modified": round(bundle.modified, 3),
        "problem": bundle.problem or None,
    }


def _print(found: Sequence[KeptBundle], not_made: Sequence[str]) -> None:
    from edgedec.memory.byte_sizes import format_bytes

    rows = [("name", "method", "size", "changed", "where")]
    for bundle in found:
        date = time.strftime("%Y-%m-%d %H:%M", time.localtime(bundle.modified))
        where = bundle.path.name if bundle.place == "embedded" else bundle.place
        rows.append((bundle.name, bundle.method or "unreadable", format_bytes(bundle.size_bytes), date, where))
    rows += [(name, "", "", "", "made when it is first used") for name in not_made]
    print_table(rows, right=(2,))
    for bundle in found:
        if bundle.problem:
            note(f"{bundle.name}: {bundle.problem}")
