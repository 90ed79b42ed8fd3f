"""The demo's comparison of plain decoding with speculation: the same target, the same prompt, one after the other."""

from __future__ import annotations

import time
from copy import deepcopy
from dataclasses import dataclass

from edgedec.errors import EdgedecError
from edgedec.runtime.decoders.autoregressive import AutoregressiveDecoder, open_decoder
from edgedec.runtime.planning.speculation import create_drafter
from edgedec.runtime.protocols import I32
from edgedec.runtime.rounds.statistics import RoundSeconds
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.answer import Piece
from edgedec.runtime.session.session import Session

__all__ = ["PLAIN", "GuessedPass", "Measured", "Race", "RaceRun", "TimedPiece", "Track"]

PLAIN = "none"  # the drafter that never guesses

_GREEDY = SamplingConfig(temperature=0)  # the text is the same with every drafter
_TOKENS = 128  # largest number of tokens of a run
_RUNS = 3  # runs of each drafter, which take turns
_PATIENCE_S = 8.0  # seconds after which no further runs of a text begin


@dataclass(frozen=True, kw_only=True)
class TimedPiece:
    """A piece of a text.

    Members:
        seconds: time from the first piece to this one.
        guessed: whether its last token was an accepted guess.
        tokens: number of tokens up to this piece.
    """

    text: str
    seconds: float
    guessed: bool
    tokens: int


@dataclass(frozen=True, kw_only=True)
class GuessedPass:
    """A pass of the target that checked ``guesses`` tokens, at least one, and accepted ``accepted`` of them."""

    guesses: int
    accepted: int


@dataclass(frozen=True, kw_only=True)
class RaceRun:
    """A text that was written once.

    Members:
        passes: number of passes of the target after the prompt.
        guessed: the passes among them that had guesses.
        tokens_per_second: speed after the first token.
    """

    tokens: tuple[int, ...]
    pieces: tuple[TimedPiece, ...]
    passes: int
    guessed: tuple[GuessedPass, ...]
    tokens_per_second: float


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The runs of one drafter. All figures are those of the run with the median speed, the slower one of two."""

    drafter: str
    runs: tuple[RaceRun, ...]

    @property
    def median(self) -> RaceRun:
        return sorted(self.runs, key=lambda run: run.tokens_per_second)[(len(self.runs) - 1) // 2]

    @property
    def tokens_per_second(self) -> float:
        return self.median.tokens_per_second

    @property
    def drafted(self) -> int:
        return sum(one.guesses for one in self.median.guessed)

    @property
    def accepted(self) -> int:
        return sum(one.accepted for one in self.median.guessed)

    @property
    def tokens_per_guessing_pass(self) -> float:
        """Return the tokens for each pass that had guesses, the one that the model adds included; 1 if none had any."""
        passes = len(self.median.guessed)
        return (self.accepted + passes) / passes if passes else 1.0


@dataclass(frozen=True, kw_only=True)
class Race:
    """A text by plain decoding and by speculation."""

    plain: Measured
    guessed: Measured

    @property
    def text(self) -> str:
        """Return the text, which is the same in all runs."""
        return "".join(piece.text for piece in self.plain.median.pieces)

    @property
    def ratio(self) -> float:
        """Return the speed with guesses divided by the speed of plain decoding."""
        return self.guessed.tokens_per_second / self.plain.tokens_per_second


class Track:
    """Writes texts with and without guesses in one session, so that both have the same target and cache.

    Only one text is written at a time, with all threads of the session. Each run has a new draft, which has learned nothing
    from the runs before it.

    Parameters:
        session: was opened with the drafter that plain decoding is compared with.
    """

    def __init__(self, session: Session) -> None:
        opened = session.decoder
        assert isinstance(opened, AutoregressiveDecoder)
        self.session = session
        self._drafters = {PLAIN: create_drafter(PLAIN, None), session.run.spec.drafter_name: opened.drafter}
        self._cached, self._cost = opened.cached, deepcopy(opened.cost)
        self._drafted = self._accepted = 0  # guesses of the run so far
        self._guessed: list[GuessedPass] = []

    def race(self, prompt: I32) -> Race:
        """Write the greedy text after ``prompt``, int32 [n], with and without guesses in turns.

        There are three runs of each, or fewer on a slow machine.

        Raises:
            EdgedecError: the prompt does not fit the context, or the texts differ.
        """
        runs: dict[str, list[RaceRun]] = {name: [] for name in self._drafters}
        began = time.perf_counter()
        for turn in range(_RUNS):
            if turn and time.perf_counter() - began > _PATIENCE_S:
                break
            for name, done in runs.items():
                done.append(self._write(name, prompt))
        texts = {run.tokens for done in runs.values() for run in done}
        if len(texts) != 1:
            raise EdgedecError(
                f"the texts of {', '.join(runs)} differ, but guesses must not change a text: this is a fault of edgedec; "
                "please report it with the name of your processor"
            )
        plain, guessed = (Measured(drafter=name, runs=tuple(done)) for name, done in runs.items())
        return Race(plain=plain, guessed=guessed)

    def _write(self, name: str, prompt: I32) -> RaceRun:
        session = self.session
        decoder = open_decoder(
            session.target, session.state, drafter=self._drafters[name], vocab_limit=session.bundle.tokens.size
        )
        decoder.cached, decoder.cost = self._cached, deepcopy(self._cost)
        decoder.open_draft(session.run.limits)
        decoder.on_round = self._note_pass
        session.decoder = decoder
        self._drafted = self._accepted = 0
        self._guessed = []
        pieces: list[tuple[float, Piece]] = []
        answer = session.generate(
            prompt,
            n_predict=_TOKENS,
            sampling=_GREEDY,
            on_text=lambda piece: pieces.append((time.perf_counter(), piece)),
        )
        return RaceRun(
            tokens=tuple(answer.tokens),
            pieces=tuple(
                TimedPiece(text=str(piece), seconds=at - pieces[0][0], guessed=piece.guessed, tokens=piece.tokens)
                for at, piece in pieces
            ),
            passes=answer.timings.rounds.count,
            guessed=tuple(self._guessed),
            tokens_per_second=answer.timings.predicted_per_second,
        )

    def _note_pass(self, seconds: RoundSeconds) -> None:
        """Note the guesses of a pass that has just ended."""
        decoder = self.session.decoder
        assert isinstance(decoder, AutoregressiveDecoder)
        drafted, accepted = decoder.rounds.drafted, sum(decoder.rounds.accepted)
        if drafted > self._drafted:
            self._guessed.append(GuessedPass(guesses=drafted - self._drafted, accepted=accepted - self._accepted))
        self._drafted, self._accepted = drafted, accepted
