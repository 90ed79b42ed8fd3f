"""A bundle of a random model with a tokenizer of letters, small enough to be exported and run in a browser by a test."""

from __future__ import annotations

import json
from pathlib import Path

from edgedec.bundle.bundle import Bundle
from tests.support.make_tiny import write_bundle

# A tokenizer of 40 letters, as many as the random model has ids.
_LETTERS = json.dumps(
    {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "BPE", "vocab": {chr(97 + n): n for n in range(40)}, "merges": []},
    }
)


def write_tiny_bundle(folder: Path) -> Bundle:
    """Write the bundle and open it."""
    write_bundle(folder, "native", chat_template=None, tokenizer_json=_LETTERS)
    return Bundle.open(folder)
