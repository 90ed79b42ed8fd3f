"""The memory of the server: what it holds, and what it gives back while the system is short of memory.

The ledger has an item for each part of the loaded model, from its plan, and one for the requests that are being answered. A
request begins when its worst case fits. While the system is short of memory, the parts give theirs back in their order; if
that is not enough, only small requests begin. The model's thread alone calls ``relieve`` and ``recover``, because only it
may touch the model.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from edgedec.errors import EdgedecError
from edgedec.memory.budget import Budget, MemoryLimit, find_budget
from edgedec.memory.items import memory_item
from edgedec.memory.meter import MemoryMeter
from edgedec.memory.plan import Plan
from edgedec.memory.pressure import PressureWatch, pressure_file
from edgedec.runtime.engine.ledger import AdmissionError, MemoryLedger, Reclaimer, Reservation
from edgedec.runtime.grammar.cache import GrammarCache
from edgedec.runtime.grammar.compiler import TOKEN_BYTES
from edgedec.runtime.grammar.lexer import MOST_LEXER_BYTES, tools_lexer_bytes
from edgedec.runtime.session.session_memory import SessionMemory

__all__ = ["GRAMMAR_CACHE_BYTES", "GRAMMAR_ROOM", "WORK", "ServerMemory", "request_bytes", "server_items"]

_LOG = logging.getLogger(__name__)

# Bytes of Python objects, as bounds of what was measured: a token of an answer with its text and its event, and a token of
# a prompt.
_ANSWER_TOKEN, _PROMPT_TOKEN = 1024, 64
_REQUEST = 16 << 10  # bytes of a request's other objects
# Bytes of a text's matcher and its compilation, as bounds of what was measured: at least, for each byte of the grammar's
# program, and for each optional property.
_MATCHER, _PROGRAM_BYTE, _OPTIONAL = 256 << 10, 100, 10 << 10
WORK = "work"  # item of the ledger for work on requests before their texts begin, which ends soon
GRAMMAR_CACHE_BYTES = 1 << 20  # grammars of earlier requests
# Bytes of a connection with a request and a small body, and of a silent one, as bounds of what was measured.
_CONNECTION, _SILENT_CONNECTION = 40 << 10, 16 << 10
# Room for the lexer of any one grammar, which a plan has before it has further texts at a time, and for that of a request
# with some tools, which every plan has.
GRAMMAR_ROOM = {"grammar_room": MOST_LEXER_BYTES}
_TOOLS_ROOM = {"grammar_room": tools_lexer_bytes(16, 0)}
# Tokens of the prompt, and of the answer, of a request that is always admitted, and bytes of its grammar's program and the
# optional properties there.
_SMALL_TOKENS, _SMALL_PROGRAM, _SMALL_OPTIONAL = 128, 1024, 4
# Bytes of a reservation for which the system's room is looked at, and seconds in which it has been taken.
_LARGE, _PROMISED_S = 1 << 20, 1.0
_HIGH_SHARE = 0.85  # share of the budget above which free memory of the heap is given back at once
_NOTE_S = 30.0  # seconds between lines of the log about refused requests


def server_items(vocabulary: int, *, requests: int, connections: int) -> dict[str, int]:
    """Return the bytes that a server holds beside the model, by part, for the plan.

    Args:
        vocabulary: ids of the tokenizer.
        requests: most requests at the same time, with those that wait.
        connections: most connections at the same time.
    """
    return {
        "grammars": TOKEN_BYTES * vocabulary + GRAMMAR_CACHE_BYTES,
        "connections": _CONNECTION * requests + _SILENT_CONNECTION * max(0, connections - requests),
        **_TOOLS_ROOM,
    }


def request_bytes(
    *,
    prompt: int,
    answer: int,
    program: int | None = None,
    lexer: int = 0,
    optional: int = 0,
) -> int:
    """Return the most memory that a request takes outside the model, in bytes.

    Args:
        prompt, answer: numbers of tokens.
        program: bytes of the program of the answer's grammar; None: it has none.
        lexer, optional: ``lexer_bytes`` and ``optional`` of this grammar.
    """
    matcher = 0 if program is None else _MATCHER + _PROGRAM_BYTE * program + _OPTIONAL * optional + lexer
    return _REQUEST + _PROMPT_TOKEN * prompt + _ANSWER_TOKEN * answer + matcher


class ServerMemory:
    """The ledger of the loaded model, and the watch of the system's pressure.

    Parameters:
        budget: limits of the memory, for reports; None: unknown.
        wake: called in the thread of the watch when ``relieve`` should be called.
        limits: returns the limits of the system's memory that are watched; None: those of this process now.

    Members:
        writes: returns True while texts are written, which end and give their memory back; set by the service.
        waiting: requests that wait for memory before their texts, the one first that has waited longest.
        text_waits_for_work: True while a text waits for the end of work, so that no further work begins; set by the service.
    """

    def __init__(
        self,
        budget: Budget | None = None,
        *,
        wake: Callable[[], None] = lambda: None,
        limits: Callable[[], Iterable[MemoryLimit]] | None = None,
    ) -> None:
        self.budget, self.wake = budget, wake
        self.writes: Callable[[], bool] = lambda: False
        self.waiting: dict[object, None] = {}
        self.text_waits_for_work = False
        self.ledger = MemoryLedger(None)
        self._parked: Callable[[], int] = lambda: 0  # texts whose rows are on the disk
        self._meter: MemoryMeter | None = None  # the meter of the loaded model
        self._relief = threading.Event()
        self._promising, self._promised = threading.Lock(), deque[tuple[float, int]]()  # (time in seconds, bytes)
        self._noting, self._refused, self._next_note = threading.Lock(), 0, -math.inf
        self.watch = PressureWatch(
            self._pressed, self._calm, file=pressure_file(), limits=limits or (lambda: find_budget().limits)
        )

    @property
    def pressed(self) -> bool:
        """True if ``relieve`` should be called."""
        return self._relief.is_set()

    @property
    def ends_something(self) -> bool:
        """True while texts are written, or requests are worked on before their texts, which ends and gives memory back."""
        return self.writes() or self.text_waits_for_work or bool(self.ledger.items().get(WORK))

    @property
    def recovering(self) -> bool:
        """True if ``recover`` should be called now and then."""
        return not self.watch.high and not self.ledger.all_open

    def load(self, plan: Plan, memory: SessionMemory, grammars: GrammarCache, meter: MemoryMeter) -> None:
        """Begin the ledger of a model that was just loaded, beside which ``grammars`` are kept.

        The model stays within ``plan``, whose part for the host is that of requests. ``memory`` gives the session's back,
        and ``meter`` measures all of it.
        """
        host = plan.phases["run"].get("host", 0)
        reclaimers = [
            Reclaimer(
                name="idle pools",
                reclaimable=lambda: memory.idle_bytes + grammars.nbytes,
                reclaim=lambda: _release_idle(memory, grammars),
            ),
            Reclaimer(
                name="drafter",
                reclaimable=lambda: memory.drafter_bytes,
                reclaim=memory.release_drafter,
                opened=lambda: _restore_drafter(memory),
            ),
            Reclaimer(
                name="prompt cache",
                reclaimable=lambda: memory.kept_bytes,
                reclaim=lambda: _drop_kept(memory),
                opened=lambda: memory.keep_prefixes(True),
            ),
            Reclaimer(
                name="idle sequences",
                reclaimable=lambda: memory.parkable_bytes,
                reclaim=memory.park,
                opened=memory.unpark,
            ),
        ]
        small = request_bytes(
            prompt=_SMALL_TOKENS, answer=_SMALL_TOKENS, program=_SMALL_PROGRAM, optional=_SMALL_OPTIONAL
        )
        ledger = MemoryLedger(plan.budget_bytes, floor_bytes=min(small, host), reclaimers=reclaimers)
        for name, size in plan.phases["run"].items():
            if (part := memory_item(name).part) != "requests":  # requests take the place of theirs
                ledger.charge(part, size)
        self._change_ledger(ledger)
        self._parked, self._meter = lambda: memory.parked, meter
        meter.high_bytes = 0 if plan.budget_bytes is None else int(_HIGH_SHARE * plan.budget_bytes)

    def unload(self) -> None:
        """End the ledger of a model that is unloaded."""
        self.ledger.end()
        self._change_ledger(MemoryLedger(None))
        self._parked, self._meter = lambda: 0, None

    def _change_ledger(self, ledger: MemoryLedger) -> None:
        former, self.ledger = self.ledger, ledger
        ledger.adopt(former)  # the bodies of requests that are on their way

    def admit(self, nbytes: int, *, alone: bool, lexer: int = 0) -> Reservation | None:
        """Reserve the worst case of a request; None if it must wait for another one, or for work on one, to end.

        Args:
            nbytes: bytes of the worst case, see ``request_bytes``.
            alone: True if no request is being answered, so that this one waits for work on others at most. It is then
                admitted with the bytes that are free, which are the plan's, unless the system is short of memory.
            lexer: the part of ``nbytes`` for a grammar's lexer, which the plan has not, so that it must be free.

        Raises:
            AdmissionError: the system is short of memory, all parts have given theirs back, and the request is not small;
                or the budget is too small for the lexer; or the request is alone, and the system has no room for it at this
                moment, although all parts have given theirs back.
        """
        reservation = self._admitted(nbytes, alone=alone, lexer=lexer)
        if reservation is None or self._has_room(reservation.nbytes, relieves=alone):
            return reservation
        asked = reservation.nbytes
        reservation.close()
        if not alone:
            return None
        self.note_refusal()
        raise _no_room("requests", asked)

    def _admitted(self, nbytes: int, *, alone: bool, lexer: int) -> Reservation | None:
        """Reserve the worst case as far as the budget goes; see ``admit``."""
        ledger = self.ledger
        try:
            return ledger.reserve("requests", nbytes)
        except AdmissionError as error:
            if ledger.is_shut and not error.small:
                self.note_refusal()
                raise
            if not alone:
                return None
            if not error.small and ledger.items().get(WORK):
                return None
            if (
                ledger.is_shut
            ):  # the floor is held by the bodies of requests that wait, which must not wait for each other
                return ledger.reserve("requests", 0)
            try:
                return ledger.reserve("requests", min(nbytes, max(lexer, error.free_bytes)))
            except AdmissionError as second:
                if second.free_bytes >= error.free_bytes:
                    raise
                return None  # another thread has taken some meanwhile

    def reserve(self, item: str, nbytes: int) -> Reservation:
        """Reserve memory for a part of a request.

        Raises:
            AdmissionError: there is no room in the budget, or in the system at this moment.
        """
        while True:
            ledger = self.ledger
            reservation = ledger.reserve(item, nbytes)
            if ledger is self.ledger:
                break
            reservation.close()  # a model was loaded or unloaded meanwhile
        if self._has_room(nbytes):
            return reservation
        reservation.close()
        raise _no_room(item, nbytes)

    def _has_room(self, nbytes: int, *, relieves: bool = False) -> bool:
        """Return True if the system has room for a large reservation, whatever the budget says. Others need no look.

        A grammar takes its memory within a tenth of a second, before the watch of the pressure looks again. What others
        were promised in the last second counts, because they may not have taken it.

        Args:
            nbytes: the reservation.
            relieves: let the parts give memory back for it. Only the model's thread may ask for that.
        """
        if nbytes < _LARGE or nbytes <= self.ledger.floor_bytes:
            return True
        anew = False
        while not self._promise(nbytes, anew=anew):
            if not (relieves and self.ledger.relieve()):
                return False
            anew = True
        return True

    def _promise(self, nbytes: int, *, anew: bool) -> bool:
        """Promise memory of the system, read ``anew``, and return True; or return False if there is no room for it."""
        with self._promising:
            now = time.monotonic()
            while self._promised and self._promised[0][0] < now - _PROMISED_S:
                self._promised.popleft()
            room = self.watch.has_room(nbytes + sum(size for _, size in self._promised), anew=anew)
            if room:
                self._promised.append((now, nbytes))
            return room

    def note_refusal(self) -> None:
        """Log that requests are refused because memory is short: at once, and then with their number every ``_NOTE_S``."""
        with self._noting:
            self._refused += 1
            now = time.monotonic()
            if now < self._next_note:
                return
            count, self._refused, self._next_note = self._refused, 0, now + _NOTE_S
        watch = self.watch
        room = "an unknown number of" if math.isinf(watch.room) else f"{watch.room:.1f}"
        _LOG.warning(
            "memory is short, so requests that are not small are refused with 429 (%d since the last such line): programs "
            "waited for memory in %.0f %% of the last seconds, and %s reserves are left; see /memory",
            count,
            100 * watch.share,
            room,
        )

    @property
    def retry_seconds(self) -> int:
        """Seconds after which a request that was refused should be sent again: pressure lasts at least as long."""
        return math.ceil(self.watch.config.calm_s)

    def relieve(self) -> None:
        """Give memory back after the system was short of it.

        If there is too little room under a limit, the parts give theirs back at once until there is enough. If programs
        wait for memory, one part does, because it takes a while until this helps. When nothing is left to give and it was
        not enough, or texts had to make room, only small requests are admitted.
        """
        self._relief.clear()
        enough = False
        while not enough and self.ledger.relieve():
            enough = self.watch.measure_room() >= 1
        if enough and not self._parked():
            return
        self.ledger.shut()
        if not self.watch.high:  # it has ended meanwhile
            self.ledger.end_relief()

    def recover(self) -> None:
        """Let the parts have their memory again, one at a time, when memory has been plentiful."""
        if self.recovering:
            self.ledger.recover()

    def as_json(self) -> dict[str, Any]:
        """Return the limits, the ledger, the last and the largest measured bytes of a loaded model, and the pressure."""
        meter = self._meter
        return {
            "budget": None if self.budget is None else self.budget.as_json(),
            "ledger": self.ledger.as_json(),
            "meter": None
            if meter is None
            else {"measured_bytes": meter.measured_bytes, "peak_bytes": meter.peak_bytes},
            "pressure": self.watch.as_json(),
        }

    def _pressed(self, share: float) -> None:
        self._relief.set()
        self.wake()

    def _calm(self) -> None:
        self._relief.clear()
        self.ledger.end_relief()
        self.wake()


def _no_room(item: str, nbytes: int) -> AdmissionError:
    return AdmissionError(item, asked_bytes=nbytes, free_bytes=0, largest_bytes=sys.maxsize, small=False)


def _release_idle(memory: SessionMemory, grammars: GrammarCache) -> None:
    grammars.clear()
    memory.release_idle()


def _drop_kept(memory: SessionMemory) -> None:
    memory.keep_prefixes(False)
    memory.move_to_disk()
    memory.release_idle()


def _restore_drafter(memory: SessionMemory) -> None:
    try:
        memory.restore_drafter()
    except EdgedecError as error:
        _LOG.warning("texts are written without guesses from now on: %s", error)
