"""Drive a peer's process that writes greedy texts, with the line protocol that llama_speculation.cpp describes."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from edgedec.errors import DeviceError

__all__ = ["Peer", "PeerText", "PeerWriter"]

PATIENCE_S = 10.0  # seconds that a process has for ending before it is killed


@dataclass(frozen=True, kw_only=True)
class PeerText:
    """One text. ``seconds`` includes neither prompt nor loading; ``draft_seconds`` is the part spent on proposals.

    ``drafted`` is the number of proposals that the peer counts, and ``accepted`` the number that it accepted.
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


class PeerWriter:
    """Runs ``command``, whose first line describes the model in fields separated by tabs."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Start the process.

        Raises:
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
        with suppress(BrokenPipeError):  # the read below raises the error
            self._process.stdin.write(f"{command}\n")
            self._process.stdin.flush()
        return self._read()

    def read(self, ids: Sequence[int]) -> None:
        """Bring a prompt into the cache.

        Raises:
            DeviceError: the peer refuses the prompt, or has ended.
        """
        self._ask(f"read {' '.join(str(int(id_)) for id_ in ids)}")

    def write(self, how: str, tokens: int) -> PeerText:
        """Write the text after the most recent prompt; ``how`` is the drafter in the protocol of the process.

        Raises:
            DeviceError: the peer refuses, has ended, or gives another answer.
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
            raise DeviceError(f"{self.name}: its answer {answer[:80]!r} is not a text") from None
        if not 0 < len(text.tokens) <= tokens or not text.seconds > 0:
            raise DeviceError(f"{self.name} wrote {len(text.tokens)} tokens in {seconds} s instead of up to {tokens}")
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
    """A program that is ready to write. ``plain`` and ``drafters`` are arguments of its writer's ``write``."""

    writer: PeerWriter
    plain: str
    drafters: Mapping[str, str]
    details: Mapping[str, Any]
