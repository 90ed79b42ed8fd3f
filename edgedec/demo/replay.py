"""The demo's race on a terminal: a text by plain decoding and the same text with guesses, side by side."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from edgedec.demo.comparison import Measured, Race

__all__ = ["can_replay", "figures", "replay"]

_LEAST_WIDTH = 80  # columns of a terminal on which two texts fit beside each other
_MOST_WIDTH = 120  # columns that both texts take at most
_GAP = 3  # columns between the texts
_FRAME_S = 0.04  # seconds of a frame
_LONGEST_S = 10.0  # seconds of a replay at most; a slower text is replayed faster than it was measured
_GUESSED = "green"  # colour of accepted guesses, as in ``generate --show-draft``


def figures(race: Race) -> str:
    """Return a sentence with the speeds of both, and one about the guesses."""
    plain, guessed = race.plain, race.guessed
    runs = len(plain.runs)
    speeds = (
        f"same text, {plain.tokens_per_second:.0f} and {guessed.tokens_per_second:.0f} tokens/s, {race.ratio:.2f} times "
        f"({'one run of each' if runs == 1 else f'medians of {runs} runs, in turns'})"
    )
    if not guessed.drafted:
        return f"{speeds}; nothing was guessed, because it would not have paid"
    share = 100 * guessed.accepted / guessed.drafted
    return (
        f"{speeds}\n{guessed.accepted} of {guessed.drafted} guesses accepted ({share:.0f} %); "
        f"{guessed.tokens_per_guessing_pass:.1f} tokens per pass while guessing, in {len(guessed.median.guessed)} of "
        f"{guessed.median.passes} passes"
    )


def can_replay(race: Race, console: Console) -> bool:
    """Return True if the console is a terminal with colours on which the whole race fits."""
    if not console.is_interactive or console.no_color or console.width < _LEAST_WIDTH:
        return False
    return len(console.render_lines(_frame(race, console.width, None), pad=False)) < console.height - 1


def replay(
    race: Race,
    console: Console,
    *,
    clock: Callable[[], float] = time.perf_counter,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Show both texts as they were written, side by side; ``can_replay`` must be True.

    Args:
        clock: returns the time in seconds.
        wait: waits for a number of seconds.
    """
    longest = max(one.median.pieces[-1].seconds for one in (race.plain, race.guessed))
    faster = max(1.0, longest / _LONGEST_S)
    pace = "the measured speeds" if faster == 1 else f"{faster:.1f} times the measured speeds"
    console.print(
        f"replay at {pace}: each text was written alone, with all threads; [{_GUESSED}]{_GUESSED}[/{_GUESSED}]: accepted "
        "guesses",
        highlight=False,
    )
    began = clock()
    with Live(console=console, auto_refresh=False) as live:
        while (now := (clock() - began) * faster) < longest:
            live.update(_frame(race, console.width, now), refresh=True)
            wait(_FRAME_S)
        live.update(_frame(race, console.width, None), refresh=True)


def _frame(race: Race, columns: int, now: float | None) -> Table:
    """Return both texts as they are ``now`` seconds after their first tokens; None: at their ends."""
    width = (min(columns, _MOST_WIDTH) - _GAP - 2) // 2
    grid = Table.grid(padding=(0, _GAP, 0, 0))
    for _ in range(2):
        grid.add_column(width=width)
    grid.add_row(*(Text(title, "bold") for title in ("plain decoding", f"with guesses ({race.guessed.drafter})")))
    grid.add_row(*(_text(one, now) for one in (race.plain, race.guessed)))
    grid.add_row(*(_state(one, now) for one in (race.plain, race.guessed)))
    return grid


def _text(measured: Measured, now: float | None) -> Text:
    pieces = [piece for piece in measured.median.pieces if now is None or piece.seconds <= now]
    return Text.assemble(*((piece.text, _GUESSED if piece.guessed else "") for piece in pieces))


def _state(measured: Measured, now: float | None) -> Text:
    run = measured.median
    last = run.pieces[-1]
    if now is None or now >= last.seconds:
        return Text(f"{len(run.tokens)} tokens in {last.seconds:.2f} s", "bold")
    done = max(piece.tokens for piece in run.pieces if piece.seconds <= now)
    return Text(f"{done} tokens in {now:.2f} s", "dim")
