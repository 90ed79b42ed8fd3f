"""Measure what a random text of a grammar adds to a process that does nothing else."""

from __future__ import annotations

import ctypes
import json
import pickle
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np

from edgedec.errors import EdgedecError
from edgedec.memory.heap import trim_heap
from edgedec.runtime.grammar.compiler import GrammarCompiler
from edgedec.runtime.grammar.grammar import Grammar
from tests.runtime.grammar.support.random_writer import demo_tokenizer
from tests.runtime.grammar.test_cache import resident_bytes

_ROOT = Path(__file__).parents[4]
_PR_SET_THP_DISABLE = 41  # Source: prctl(2)


def growth_in_a_fresh_process(grammar: Grammar) -> tuple[int, int]:
    """Return what `growth_of_a_random_text` returns in a process of its own."""
    command = [sys.executable, "-m", __name__]
    child = subprocess.run(command, cwd=_ROOT, input=pickle.dumps(grammar), stdout=subprocess.PIPE, check=True)
    tokens, growth = json.loads(child.stdout)
    return tokens, growth


def growth_of_a_random_text(grammar: Grammar) -> tuple[int, int]:
    """Write at random until the end, or until the lexer has too many states. Return tokens, and the most bytes added."""
    if sys.platform == "linux":  # a huge page counts 2 MiB when its first byte is written
        ctypes.CDLL(None).prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)
    compiler, random = GrammarCompiler(demo_tokenizer()), np.random.default_rng(1)
    compiler.prepare()
    trim_heap()
    before = most = resident_bytes()
    constraint = compiler.constraint(grammar, prompt_length=0)
    text = np.zeros(0, np.int32)
    with suppress(EdgedecError):
        for _ in range(600):
            if (mask := constraint.allowed(text)) is None or not mask.any():
                break
            text = np.append(text, random.choice(np.flatnonzero(mask)).astype(np.int32))
            most = max(most, resident_bytes())
    return len(text), most - before


if __name__ == "__main__":
    sys.stdout.write(json.dumps(growth_of_a_random_text(pickle.load(sys.stdin.buffer))))
