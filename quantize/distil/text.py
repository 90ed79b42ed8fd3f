"""Provide the tokens that students learn from: text files, or text that the teacher writes itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from edgedec.bundle.atomic import new_file
from edgedec.errors import BundleError, UsageError
from edgedec.progress import Progress, silent
from edgedec.quantize.distil.devices import Place
from edgedec.quantize.distil.schedule import Ids
from edgedec.quantize.distil.torch_graph import TorchCache, TorchGraph

__all__ = ["Special", "read_texts", "sample_text", "split"]

_SEQUENCES = 64  # sequences that are sampled together; the sampled text depends on it
_LINES_AT_ONCE = 4096
_VALID_SHARE, _VALID_LIMIT = 0.02, 65_536


@dataclass(frozen=True, kw_only=True)
class Special:
    """Tokens that begin and end a document, and the number of ids of the tokenizer (the model may have more)."""

    bos: int | None
    eos: tuple[int, ...]
    limit: int

    @property
    def ends(self) -> tuple[int, ...]:
        """End tokens. A token that is both begin and end token (llama2.c) only begins documents here."""
        return tuple(token for token in self.eos if token != self.bos)


def _type(limit: int) -> type[np.uint16 | np.uint32]:
    return np.uint16 if limit <= 1 << 16 else np.uint32


def _documents(file: Path) -> Iterator[list[str]]:
    """Yield each document of a file as a list of lines: a line of JSONL with a key ``text``, or a whole text file."""
    try:
        text = file.read_text("utf-8")
    except FileNotFoundError:
        raise UsageError(f"--text {file}: there is no such file; check the spelling of the path") from None
    except OSError as error:
        raise UsageError(f"--text {file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"--text {file}: not UTF-8 at byte {error.start}; save the text as UTF-8") from None
    if not text.strip():
        raise UsageError(f"--text {file}: the file is empty; give a file with text, or none for the teacher's own text")
    if file.suffix != ".jsonl":
        yield text.splitlines(keepends=True)
        return
    for number, line in enumerate(text.split("\n"), 1):  # not splitlines, because JSON strings may hold other line ends
        if not line.strip():
            continue
        try:
            document = json.loads(line)["text"]
            document.encode()  # fails for a value that is not a string, and for a lone surrogate
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            raise UsageError(
                f'--text {file}: line {number} must be a JSON object with a string under the key "text"; correct the '
                "line, or rename the file if it is not JSONL"
            ) from None
        yield [document]


def read_texts(files: Sequence[Path], tokenizer: Tokenizer, special: Special) -> Ids:
    """Return the ids of all documents end to end, each between its begin token and its end token.

    Raises:
        UsageError: a file is missing or empty, or does not have the format that its name says.
        BundleError: the tokenizer gives ids that the model does not have.
    """
    parts: list[Ids] = []
    for file in files:
        for pieces in _documents(file):
            ids = [] if special.bos is None else [special.bos]
            for at in range(0, len(pieces), _LINES_AT_ONCE):
                chunk = "".join(pieces[at : at + _LINES_AT_ONCE])
                ids += tokenizer.encode(chunk, add_special_tokens=False).ids
            ids += special.ends[:1]
            if max(ids, default=0) >= special.limit:
                raise BundleError(
                    f"--text {file}: the tokenizer gives id {max(ids)}, the model has {special.limit}; it belongs to "
                    "another model"
                )
            parts.append(np.asarray(ids, _type(special.limit)))
    return np.concatenate(parts)


@torch.inference_mode()
def _sample(
    teacher: TorchGraph, special: Special, length: int, temperature: float, seed: int, progress: Progress
) -> Ids:
    """Sample [_SEQUENCES * length] ids. The next document follows an end token, as in a packed training text."""
    device = next(teacher.parameters()).device
    rng = np.random.default_rng(seed)
    out = np.empty((_SEQUENCES, length), np.int64)
    out[:, 0] = rng.integers(0, special.limit, _SEQUENCES) if special.bos is None else special.bos
    cache = TorchCache(positions=length)
    for at in range(1, length):
        logits, _ = teacher(torch.from_numpy(out[:, at - 1 : at]).to(device), cache)
        scores = logits[:, 0, : special.limit].float().cpu().numpy().astype(np.float64) / temperature
        # Gumbel-max: argmax(scores + noise) is a draw from softmax(scores).
        out[:, at] = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
        if special.bos is not None:
            out[np.isin(out[:, at - 1], special.ends), at] = special.bos
        progress("", at, length - 1)
    return out.reshape(-1).astype(_type(special.limit))


def _load_part(file: Path, count: int, limit: int) -> Ids | None:
    """Return a part that was sampled before, or None if it is missing or damaged."""
    try:
        ids = np.load(file)
    except (OSError, ValueError, EOFError):
        return None
    whole = isinstance(ids, np.ndarray) and ids.shape == (count,) and ids.dtype == _type(limit) and ids.max() < limit
    return ids if whole else None


def sample_text(
    teacher: TorchGraph,
    special: Special,
    folder: Path,
    *,
    tokens: int,
    length: int,
    place: Place,
    temperature: float = 1.0,
    seed: int = 0,
    progress: Progress = silent,
) -> Ids:
    """Return at least ``tokens`` ids that the teacher samples in sequences of ``length``.

    ``length`` must not exceed the teacher's context by more than 1. The parts are stored in ``folder`` one by one, so that
    a killed run can continue, and are divided among the processes.

    Source: LLM-QAT (2305.17888).

    Raises:
        EdgedecError: a part cannot be written.
    """
    count = _SEQUENCES * length
    files = [folder / f"{part:05}.npy" for part in range(-(-tokens // count))]
    mine = [(part, file) for part, file in enumerate(files) if part % place.world == place.rank]
    for done, (part, file) in enumerate(mine):

        def tell(_: str, step: int, steps: int, done: int = done) -> None:
            progress("tokens of the teacher's text", (done * steps + step) * count // steps, len(mine) * count)

        if _load_part(file, count, special.limit) is None:
            ids = _sample(teacher, special, length, temperature, seed + part, tell)
            with new_file(file) as path, path.open("wb") as stream:
                np.save(stream, ids)
    place.wait()
    return np.concatenate([np.load(file) for file in files])


def split(ids: Ids, least: int) -> tuple[Ids, Ids]:
    """Split ids into training and held-out text: the last 2 %, at least ``least`` tokens and at most 65,536, are held out.

    Raises:
        UsageError: the text is too short for both.
    """
    held_out = min(max(least, round(len(ids) * _VALID_SHARE)), max(least, _VALID_LIMIT))
    if len(ids) < held_out + least:
        raise UsageError(
            f"the text has {len(ids)} tokens; training and validation need {least} each: give more text, or a "
            "smaller --length"
        )
    return ids[:-held_out], ids[-held_out:]
