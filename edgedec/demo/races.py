"""The step of the demo that shows what speculation is worth: a new story and a conversation, with guesses and without."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.demo.comparison import Race, Track
from edgedec.demo.messages import messages
from edgedec.demo.padded import padded_bundle, padded_path, why_no_room
from edgedec.demo.replay import can_replay, figures, replay
from edgedec.errors import EdgedecError
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.session.session import Session

__all__ = ["show_races"]

_NAMES = ("a new story", "a conversation about it")
_CONTEXT = 1024  # tokens
_KV_BITS = 16  # the same for both models, because the text depends on it
_INTRODUCTION = """\
  A drafter guesses tokens, and one pass of the model checks all of them. That pays where reading the weights takes most of
  the time. So this step pads the model to the 0.73 B parameters of BitNet b1.58 with weights that change no text: it writes
  the small model's text at the large one's speed. Its draft model has 0.4 M parameters; a real model of that size would
  need a larger and slower one."""


def show_races(asks: Sequence[str], console: Console) -> Path | None:
    """Write the answers of a conversation with guesses and without, and show their speeds.

    Args:
        asks: two messages of the user; the first is a request for a new story.

    Returns:
        The padded model, which stays in the cache folder; None: there was no room for it, and the embedded model wrote.

    Raises:
        EdgedecError: the embedded models cannot be made or run, or guesses changed a text.
    """
    console.print(_INTRODUCTION, highlight=False)
    small = demo.bundle_path("demo")
    session = _open_padded(small, console)
    if session is None:
        with _open(small) as session:
            for name, ask, race in _races(session, asks, console):
                _show(name, ask, race, console)
        return None
    with session:
        padded = session.bundle.path
        for name, ask, race in _races(session, asks, console):
            _show(name, ask, race, console)
    with _open(small) as session:
        speeds = "; ".join(
            f"{name} {race.plain.tokens_per_second:.0f} and {race.guessed.tokens_per_second:.0f} tokens/s, "
            f"{race.ratio:.2f} times"
            for name, _, race in _races(session, asks, console)
        )
    console.print(f"\nthe model without padding, whose 7.9 M weights fit a cache: {speeds}", highlight=False)
    return padded


def _open(path: Path) -> Session:
    spec = SpecConfig(drafter="auto", draft=demo.bundle_path("demo-draft"))
    return Session.open(path, ctx_size=_CONTEXT, kv_bits=_KV_BITS, spec=spec)


def _open_padded(small: Path, console: Console) -> Session | None:
    """Open the padded model, which is made now if it is not there; None: it cannot be made or opened here, as is said."""
    try:
        path = padded_path(Bundle.open(small))
        reason = why_no_room(path)
        if reason is None:
            began, kept = time.perf_counter(), path.exists()
            with console.status("  the padded model ..."):
                session = _open(padded_bundle(small))
            size = sum(file.stat().st_size for file in path.iterdir())
            console.print(
                f"  padded model: {'opened' if kept else 'made and opened'} in {time.perf_counter() - began:.1f} s; "
                f"{size / 1e6:.0f} MB, kept for the next demo. Remove it with\n  edgedec remove {path.name}",
                highlight=False,
            )
            return session
    except (EdgedecError, MemoryError, OSError) as error:
        reason = str(error) or "there is not enough memory"
    console.print(
        f"  The padded model is left out: {reason}.\n  The small model is compared instead. Its weights fit a cache, so a "
        "pass costs little, and guesses may cost more than they save.",
        highlight=False,
    )
    return None


def _races(session: Session, asks: Sequence[str], console: Console) -> Iterator[tuple[str, str, Race]]:
    """Yield the name, the message and the race of each answer of a conversation."""
    track, said = Track(session), list[str]()
    for name, ask in zip(_NAMES, asks, strict=True):
        said.append(ask)
        with console.status(f"  {name}: writing it with guesses and without, in turns ...", refresh_per_second=1):
            race = track.race(session.encode_chat(messages(said)))
        said.append(race.text.strip())
        yield name, ask, race


def _show(name: str, ask: str, race: Race, console: Console) -> None:
    console.print(f"\n  [bold]{name}[/bold]\n> {ask}", highlight=False)
    if can_replay(race, console):
        replay(race, console)
    else:
        console.print(race.text.strip(), highlight=False, markup=False)
    console.print(figures(race), highlight=False)
