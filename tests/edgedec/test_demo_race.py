"""Test the demo's race: plain decoding and speculation write the same text on the padded model."""

from __future__ import annotations

import re
import shutil
from collections import namedtuple
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.cli._kept_bundles import cached_bundles, foreign_files
from edgedec.demo import padded, races
from edgedec.demo.comparison import PLAIN, GuessedPass, Measured, Race, RaceRun, TimedPiece, Track
from edgedec.demo.messages import messages
from edgedec.demo.replay import can_replay, figures, replay
from edgedec.errors import EdgedecError
from edgedec.memory.budget import Budget, MemoryLimit
from edgedec.quantize.synthetic.random_bundle import SHAPES
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.rounds.adaptive import Adaptive
from edgedec.runtime.session.session import Session

ASKS = ("Tell me a story about a girl named Ruby and a kite.", "Make it happy.")
WORDS = ("One day, ", "Ruby ", "flew ", "a ", "kite.")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("a cache")


@pytest.fixture
def in_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


@pytest.fixture
def always_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guess in every round and at the full depth: otherwise the speed of the machine decides, and counts with it."""
    monkeypatch.setattr(Adaptive, "_judge", lambda self: None)
    monkeypatch.setattr(Adaptive, "size", lambda self, policy, limits, past: limits)


def run(speed: float, guessed: tuple[GuessedPass, ...] = (), *, passes: int = len(WORDS)) -> RaceRun:
    """Return a run that wrote a word of ``WORDS`` at each token; the second and third are guesses if there are guesses."""
    pieces = tuple(
        TimedPiece(text=word, seconds=at / speed, guessed=bool(guessed) and at in (1, 2), tokens=at + 1)
        for at, word in enumerate(WORDS)
    )
    return RaceRun(
        tokens=tuple(range(len(WORDS))), pieces=pieces, passes=passes, guessed=guessed, tokens_per_second=speed
    )


def race(plain: tuple[float, ...] = (10,), guessed: tuple[float, ...] = (20,), *, guesses: bool = True) -> Race:
    passes = (GuessedPass(guesses=3, accepted=2), GuessedPass(guesses=1, accepted=0)) if guesses else ()
    return Race(
        plain=Measured(drafter=PLAIN, runs=tuple(run(speed) for speed in plain)),
        guessed=Measured(drafter="auto", runs=tuple(run(speed, passes, passes=3) for speed in guessed)),
    )


def terminal(width: int = 80, height: int = 24, **options: Any) -> Console:
    return Console(
        file=StringIO(), force_terminal=True, width=width, height=height, _environ={"TERM": "xterm"}, **options
    )


def shown(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_text_is_shown_by_its_median_run() -> None:
    assert race(plain=(9, 30, 10)).plain.tokens_per_second == 10
    assert race(plain=(30, 10)).plain.tokens_per_second == 10, "the slower one of two"
    assert race(plain=(30, 10)).ratio == 2


def test_tokens_per_pass_are_counted_over_passes_that_had_guesses() -> None:
    guessed = race().guessed
    assert (guessed.drafted, guessed.accepted, guessed.tokens_per_guessing_pass) == (4, 2, 2.0)
    assert race().plain.tokens_per_guessing_pass == 1.0


def test_the_figures_are_sentences() -> None:
    assert figures(race()) == (
        "same text, 10 and 20 tokens/s, 2.00 times (one run of each)\n"
        "2 of 4 guesses accepted (50 %); 2.0 tokens per pass while guessing, in 2 of 3 passes"
    )
    three = figures(race((8, 10, 9), (4, 5, 6), guesses=False))
    assert three == (
        "same text, 9 and 5 tokens/s, 0.56 times (medians of 3 runs, in turns); "
        "nothing was guessed, because it would not have paid"
    )


@pytest.mark.parametrize(
    ("console", "expected"),
    [
        (terminal(), True),
        (terminal(width=79), False),
        (terminal(height=3), False),
        (terminal(no_color=True), False),
        (Console(file=StringIO(), width=120), False),
        (Console(file=StringIO(), force_terminal=True, width=120, _environ={"TERM": "dumb"}), False),
    ],
)
def test_only_a_terminal_with_room_and_colours_has_a_replay(console: Console, expected: bool) -> None:
    assert can_replay(race(), console) is expected


class _Clock:
    """A clock that only waiting moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def read(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


def test_a_replay_shows_both_texts_at_their_own_speeds() -> None:
    console, clock = terminal(color_system="standard"), _Clock()
    replay(race(), console, clock=clock.read, wait=clock.wait)
    assert clock.now - 100 == pytest.approx(0.4, abs=0.05), "five tokens at ten tokens per second"
    text = shown(console)
    assert text.startswith("replay at the measured speeds: each text was written alone, with all threads; ")
    assert "\x1b[32mRuby \x1b[0m\x1b[32mflew \x1b[0m" in text, "guesses are green"
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    assert len(re.findall("plain decoding +with guesses", plain)) > 5, "there are frames before the last one"
    assert re.search(r"3 tokens in 0\.2\d s +5 tokens in 0\.20 s", plain), "the text with guesses is complete first"
    assert re.search(r"5 tokens in 0\.40 s +5 tokens in 0\.20 s\s*$", plain)


def test_a_slow_text_is_replayed_faster_and_this_is_said() -> None:
    console, clock = terminal(), _Clock()
    replay(race(plain=(0.1,), guessed=(0.2,)), console, clock=clock.read, wait=clock.wait)
    assert clock.now - 100 == pytest.approx(10, abs=0.1)
    assert "replay at 4.0 times the measured speeds" in shown(console)


def test_other_texts_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    track = object.__new__(Track)
    track._drafters = {PLAIN: None, "auto": None}  # type: ignore[dict-item]
    written = {PLAIN: run(1), "auto": run(2)}
    monkeypatch.setattr(Track, "_write", lambda self, name, prompt: written[name])
    assert track.race(np.zeros(1, np.int32)).ratio == 2
    assert len(track.race(np.zeros(1, np.int32)).plain.runs) == 3
    written["auto"] = RaceRun(tokens=(9,), pieces=(), passes=1, guessed=(), tokens_per_second=2)
    with pytest.raises(EdgedecError, match="texts of none, auto differ, but guesses must not change a text"):
        track.race(np.zeros(1, np.int32))


def test_the_shape_is_that_of_the_benchmarks() -> None:
    assert dict(padded.PADDED_SIZES) == {name: SHAPES["bitnet-0.73b"][name] for name in padded.PADDED_SIZES}


Usage = namedtuple("Usage", "total used free")


def memory_of(room: int) -> Callable[[], Budget]:
    limit = MemoryLimit(source="machine", name="MemAvailable", limit_bytes=4 << 30, used_bytes=(4 << 30) - room)
    return lambda: Budget(limits=(limit,))


def test_room_is_checked_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "padded"
    monkeypatch.setattr(padded, "find_budget", memory_of(padded.MEMORY_BYTES))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(0, 0, padded.DISK_BYTES))
    assert padded.why_no_room(path) is None
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(0, 0, padded.DISK_BYTES - 1))
    reason = padded.why_no_room(path)
    assert reason == f"it takes 476.8 MiB on the disk of {tmp_path}, which has 476.8 MiB free"
    path.mkdir()
    assert padded.why_no_room(path) is None, "what is there already needs no more room"
    monkeypatch.setattr(padded, "find_budget", memory_of(100 << 20))
    reason = padded.why_no_room(path)
    assert reason is not None
    assert reason.startswith(
        "it takes 572.2 MiB of memory, and 100.0 MiB are free under the limit of the machine, which has"
    )
    monkeypatch.setattr(padded, "find_budget", lambda: Budget(limits=()))
    assert padded.why_no_room(path) is None, "a system that does not say has room"


def no_room(path: Path) -> str:
    return "the disk is too small"


def full_disk(small: Path) -> Path:
    raise EdgedecError("cannot write it: the disk is full; free some space and run again")


@pytest.mark.thorough
@pytest.mark.usefixtures("in_cache")
@pytest.mark.parametrize(
    ("name", "failure", "reason"),
    [
        ("why_no_room", no_room, "the disk is too small"),
        ("padded_bundle", full_disk, "cannot write it: the disk is full; free some space and run again"),
    ],
)
def test_without_room_the_small_models_race_and_this_is_said(
    name: str, failure: object, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name != "why_no_room":
        monkeypatch.setattr(races, "why_no_room", lambda path: None)
    monkeypatch.setattr(races, name, failure)
    console = Console(file=StringIO(), width=200, soft_wrap=True)
    assert races.show_races(ASKS, console) is None
    text = shown(console)
    assert f"The padded model is left out: {reason}.\n" in text
    assert text.count("same text, ") == 2
    assert text.count("\n> ") == 2
    assert "padded model: made" not in text


@pytest.mark.thorough
@pytest.mark.usefixtures("in_cache", "always_guesses")
def test_a_run_learns_nothing_from_the_runs_before_it() -> None:
    spec = SpecConfig(drafter="model", draft="demo-draft")
    with Session.open("demo", ctx_size=512, kv_bits=16, spec=spec) as session:
        measured = Track(session).race(session.encode_chat(messages(ASKS[:1])))
    assert measured.plain.drafter == PLAIN
    assert measured.guessed.drafter == "model"
    assert [run.guessed for run in measured.plain.runs] == [(), (), ()]
    assert len({run.guessed for run in measured.guessed.runs}) == 1
    assert measured.guessed.tokens_per_guessing_pass > 1.5
    assert sum(piece.guessed for piece in measured.guessed.median.pieces) > 20
    assert measured.text.startswith("A caring girl named Ruby")


@pytest.mark.nightly
@pytest.mark.thorough
@pytest.mark.usefixtures("in_cache", "always_guesses")
def test_the_padded_model_writes_the_small_ones_text_and_keeps_within_its_sizes() -> None:
    """Check what is printed without a terminal, too."""
    console = Console(file=StringIO(), width=200, soft_wrap=True)
    path = races.show_races(ASKS, console)
    assert path is not None
    small = Bundle.open(demo.bundle_path("demo"))
    assert path == padded.padded_path(small)
    size = sum(file.stat().st_size for file in path.iterdir())
    assert 0.9 * padded.DISK_BYTES < size <= padded.DISK_BYTES
    text = shown(console)
    assert "padded model: made and opened in " in text
    assert f"{size / 1e6:.0f} MB, kept for the next demo. Remove it with\n  edgedec remove {path.name}\n" in text
    (kept,) = (bundle for bundle in cached_bundles() if bundle.path == path)
    assert (kept.name, foreign_files(kept)) == (path.name, [])  # so that the command removes it
    with races._open(path) as session:
        assert session.run.plan.total_bytes < padded.MEMORY_BYTES
    with races._open(demo.bundle_path("demo")) as session:
        track, said = Track(session), list[str]()
        for ask in ASKS:
            said.append(ask)
            measured = track.race(session.encode_chat(messages(said)))
            said.append(measured.text.strip())
            assert f"> {ask}\n{said[-1]}\nsame text, " in text
            assert measured.guessed.accepted + measured.guessed.median.passes >= len(measured.guessed.median.tokens)
    assert text.count("tokens per pass while guessing") == 2
    assert text.count("the model without padding") == 1
