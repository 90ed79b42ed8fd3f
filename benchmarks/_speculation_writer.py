"""A peer's process that writes greedy texts: one command a line, one answer a line, as _llama_speculation.cpp describes."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from edgedec.errors import DeviceError

__all__ = ["Peer", "PeerText", "Writer"]

PATIENCE_S = 10.0  # for a process to end


@dataclass(frozen=True, kw_only=True)
class PeerText:
    """One text: no prompt and no loading in ``seconds``. ``draft_seconds``: of these, spent guessing.

    ``drafted``: guesses that the peer counts, of which it ``accepted`` so many.
    """

    tokens: tuple[int, ...]
    seconds: float
    draft_seconds: float
    rounds: int
    drafted: int
    accepted: int

    @property
    def tok_s(self) -> float:
        return len(self.tokens) / self.seconds


class Writer:
    """Runs ``command``, whose first line tells about the model in fields between tabs."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Raises:
        DeviceError: the process ends, or cannot load a model.
        """
        self.name = name
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        try:
            self.about = self._read().split("\t")
        except DeviceError:
            self.close()
            raise

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line or line.startswith("error"):
            raise DeviceError(f"{self.name}: {line.removeprefix('error ') or 'its process has ended'}")
        return line

    def _ask(self, command: str) -> str:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # reading says what happened
            self._process.stdin.write(f"{command}\n")
            self._process.stdin.flush()
        return self._read()

    def read(self, ids: Sequence[int]) -> None:
        """Bring a prompt into the cache.

        Raises:
            DeviceError: the peer refuses it, or has ended.
        """
        self._ask(f"read {' '.join(str(int(id_)) for id_ in ids)}")

    def write(self, how: str, tokens: int) -> PeerText:
        """The text after the prompt that was read last; ``how`` is the drafter in the process's own words.

        Raises:
            DeviceError: the peer refuses, has ended, or answers something else.
        """
        answer = self._ask(f"write {how} {tokens}")
        try:
            seconds, draft_seconds, *counts = answer.split()
            rounds, drafted, accepted, *ids = (int(text) for text in counts)
            text = PeerText(
                tokens=tuple(ids),
                seconds=float(seconds),
                draft_seconds=float(draft_seconds),
                rounds=rounds,
                drafted=drafted,
                accepted=accepted,
            )
        except ValueError:
            raise DeviceError(f"{self.name}: its answer {answer[:80]!r} is no text") from None
        if not 0 < len(text.tokens) <= tokens or not text.seconds > 0:
            raise DeviceError(f"{self.name}: wrote {len(text.tokens)} tokens in {seconds} s, when asked for {tokens}")
        return text

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A program that is ready to write. ``plain`` and ``drafters``: what ``Writer.write`` asks it for."""

    writer: Writer
    plain: str
    drafters: Mapping[str, str]
    details: Mapping[str, Any]
