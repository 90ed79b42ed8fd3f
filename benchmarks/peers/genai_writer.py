"""Write greedy texts with onnxruntime-genai and its own speculation.

This script runs in a Python that has onnxruntime-genai, and imports nothing of edgedec.

    python genai_writer.py NAME=FOLDER...

The protocol is that of llama_speculation.cpp: one command per line and one answer per line.
    read ID...                     remember the prompt
    write NAME OPTIONS TOKENS      write the text after it with the model NAME; OPTIONS are genai's "speculative" options
                                   as KEY=VALUE,... or - for none
The answer to write has the seconds, the part of them spent on proposals, rounds, proposals, accepted proposals and the ids.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any

genai: Any = importlib.import_module(
    "onnxruntime_genai"
)  # imported by name, because type checkers run where it is not installed


class Texts:
    """The models, and the most recent prompt."""

    def __init__(self, folders: dict[str, str]) -> None:
        self.models = {name: genai.Model(folder) for name, folder in folders.items()}
        self.prompt: list[int] = []

    def read(self, ids: list[int]) -> str:
        if len(ids) < 2:
            raise ValueError("a prompt needs two tokens")
        self.prompt = ids
        return str(len(ids))

    def write(self, name: str, options: str, tokens: int) -> str:
        """Write a text. All but the prompt's last token is read before the time is taken, as in the other programs."""
        model = self.models[name]
        params = genai.GeneratorParams(model)
        params.set_search_options(max_length=len(self.prompt) + tokens, do_sample=False)
        if options != "-":
            pairs = (part.split("=", 1) for part in options.split(","))
            params.set_speculative_options(**{key: json.loads(value) for key, value in pairs})
        generator = genai.Generator(model, params)
        generator.append_tokens(self.prompt[:-1])
        began = time.perf_counter()
        generator.append_tokens(self.prompt[-1:])
        while not generator.is_done():
            generator.generate_next_token()
        seconds = time.perf_counter() - began
        ids = [int(token) for token in generator.get_sequence(0)[len(self.prompt) :]]
        stats = generator.get_speculative_stats()
        drafted, accepted = stats.get("draft_tokens_proposed", 0), stats.get("draft_tokens_accepted", 0)
        rounds = max(1, len(ids) - accepted)  # each pass writes one token of the target's own
        draft_seconds = stats.get("total_draft_ms", 0.0) / 1000 + stats.get("total_ngram_lookup_ms", 0.0) / 1000
        return " ".join(str(part) for part in (seconds, draft_seconds, rounds, drafted, accepted, *ids))


def main() -> None:
    genai.disable_telemetry_events()
    try:
        folders = dict(argument.split("=", 1) for argument in sys.argv[1:])
        texts = Texts(folders)
        print(genai.__version__, flush=True)
    except Exception as error:
        print(f"error {error}".replace("\n", " "), flush=True)
        sys.exit(1)
    for line in sys.stdin:
        verb, *words = line.split()
        try:
            if verb == "read":
                answer = texts.read([int(word) for word in words])
            else:
                answer = texts.write(words[0], words[1], int(words[2]))
        except Exception as error:
            answer = f"error {error}".replace("\n", " ")
        print(answer, flush=True)


if __name__ == "__main__":
    main()
