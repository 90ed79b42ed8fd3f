"""A bounded cache of grammars, so that clients that send the same schema with each request do not have it checked anew."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable

from edgedec.runtime.grammar.grammar import Grammar

__all__ = ["GrammarCache"]


class GrammarCache:
    """The grammars that were used last. Its methods may be called in any thread.

    A matcher of llguidance is never kept: copies share the lexer and its limits, so that a text could depend on others.

    Parameters:
        limit_bytes: most bytes of the grammars together.

    Members:
        nbytes: bytes of the grammars now: those of their sources and programs, which are ASCII texts mostly.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.nbytes = 0
        self._grammars: OrderedDict[bytes, Grammar] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._grammars)

    def get(self, content: str, make: Callable[[], Grammar]) -> Grammar:
        """Return the grammar of a text that determines it, from the cache or by ``make``, whose errors pass on."""
        key = hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()
        with self._lock:
            if key in self._grammars:
                self._grammars.move_to_end(key)
                return self._grammars[key]
        grammar = make()  # it may take a while, in which other threads use the cache
        with self._lock:
            if key not in self._grammars and _size(grammar) <= self.limit_bytes:
                self._grammars[key] = grammar
                self.nbytes += _size(grammar)
                while self.nbytes > self.limit_bytes:
                    _, oldest = self._grammars.popitem(last=False)
                    self.nbytes -= _size(oldest)
        return grammar

    def clear(self) -> None:
        """Forget all grammars."""
        with self._lock:
            self._grammars.clear()
            self.nbytes = 0


def _size(grammar: Grammar) -> int:
    return len(grammar.source.encode("utf-8", "surrogatepass")) + len(grammar.program.encode("utf-8", "surrogatepass"))
