"""Offline work: the answers to a file of requests, many at a time, which survive a kill.

A file has one request in each line, as JSON: ``{"prompt": "Once"}``, or the lines of OpenAI's batch files, whose ``body`` is
the request of a chat or a completion. Requests are answered in the order of their prompts' tokens, so that prompts with one
beginning follow each other and share its rows (``runtime/engine``). Each answer is appended to a journal beside the output
and synced; the output itself appears when all answers are there, in the order of the requests. A run that was killed goes on
from the journal.

Source: global grouping by prefix, 2412.03594 (BatchLLM).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from io import BufferedWriter
from pathlib import Path
from typing import Any

from edgedec.bundle.atomic import new_file
from edgedec.bundle.missing import spelling_of_path
from edgedec.errors import EdgedecError, UsageError
from edgedec.progress import Progress, silent
from edgedec.runtime.decoders._cached import check_prompt
from edgedec.runtime.protocols import I32
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.answer import AnswerStream
from edgedec.runtime.session.session import Session

__all__ = ["BatchDefaults", "BatchItem", "BatchResult", "journal_path", "read_batch", "run_batch"]

MOST_LINE_BYTES = 16 << 20  # bytes of a line of the file of requests
# Keys of a request, and the names that OpenAI and llama.cpp have for them.
_LENGTH = ("n_predict", "max_tokens", "max_completion_tokens")
_SAMPLING = {item.name for item in fields(SamplingConfig)} - {"logit_bias"}
_IGNORED = {"model"}
_URLS = {"/v1/chat/completions": "messages", "/v1/completions": "prompt"}


@dataclass(frozen=True, kw_only=True)
class BatchDefaults:
    """The options of requests that say nothing else.

    Members:
        n_predict: maximum number of tokens; negative: until the context is full.
        sampling: sampling options.
        stop: strings that end an answer.
        ignore_eos: continue after an end token.
    """

    n_predict: int = -1
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, kw_only=True)
class BatchItem:
    """A request of a batch.

    Members:
        id: its name, which no other request has; by default the number of its line.
        line: the number of its line.
        prompt: a text or the messages of a chat.
        options: the options of the answer.
        digest: hash of model, prompt and options.
    """

    id: str
    line: int
    prompt: str | list[dict[str, Any]]
    options: BatchDefaults
    digest: str


@dataclass(frozen=True, kw_only=True)
class BatchResult:
    """The counts of a run.

    Members:
        answered: requests that this run answered.
        kept: requests that an earlier run had answered.
        failed: requests that have an error in the place of an answer.
        interrupted: whether requests are left.
    """

    answered: int
    kept: int
    failed: int
    interrupted: bool


def journal_path(output: Path) -> Path:
    """Return the path of the journal of an output."""
    return output.with_name(f"{output.name}.partial")


def read_batch(path: Path, model: str, defaults: BatchDefaults) -> list[BatchItem]:
    """Return the requests of a file.

    Args:
        path: the file; empty lines are skipped.
        model: hash of the model, which the digests contain.
        defaults: options where a request says nothing else.

    Raises:
        UsageError: the file cannot be read, or a line is no request; the message names the line.
    """
    items: list[BatchItem] = []
    lines: dict[str, int] = {}
    for number, text in _lines(path):
        try:
            item = _item(text, number, model, defaults)
        except UsageError as error:
            raise UsageError(f"{path}, line {number}: {error}") from None
        if item.id in lines:
            raise UsageError(
                f"{path}, line {number}: line {lines[item.id]} has the id {item.id!r}, too; ids must differ"
            )
        lines[item.id] = number
        items.append(item)
    if not items:
        raise UsageError(f'{path} has no request; write one in each line, such as {{"prompt": "Once"}}')
    return items


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open("rb") as file:
            number = 0
            while raw := file.readline(MOST_LINE_BYTES + 1):
                number += 1
                if len(raw) > MOST_LINE_BYTES:
                    raise UsageError(f"{path}, line {number} has more than {MOST_LINE_BYTES} bytes; shorten it")
                try:
                    text = raw.decode().strip()
                except UnicodeDecodeError as error:
                    raise UsageError(f"{path}, line {number} is not UTF-8 ({error.reason}); convert it") from None
                if text:
                    yield number, text
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file; {spelling_of_path(path)}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def _item(text: str, number: int, model: str, defaults: BatchDefaults) -> BatchItem:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the line is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise UsageError(f"the line must be a JSON object, not {type(data).__name__}")
    name = data.pop("custom_id", data.pop("id", number))
    if not isinstance(name, (str, int)) or isinstance(name, bool) or len(str(name)) > 512:
        raise UsageError("id must be a text of at most 512 characters, or a number")
    body: dict[str, Any] = data
    expected = None
    if "body" in data:
        body = data["body"]
        if not isinstance(body, dict):
            raise UsageError("body must be a JSON object")
        url = data.get("url", "/v1/chat/completions" if "messages" in body else "/v1/completions")
        if url not in list(_URLS) or data.get("method", "POST") != "POST":
            raise UsageError(f"a line with a body must be a POST to one of {', '.join(_URLS)}")
        _refuse_others(data, {"body", "url", "method"})
        expected = _URLS[url]
    prompt = _prompt(body, expected)
    options = _options(body, defaults)
    canonical = json.dumps([model, prompt, _shown(options)], sort_keys=True, separators=(",", ":"))
    return BatchItem(
        id=str(name),
        line=number,
        prompt=prompt,
        options=options,
        digest=hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest(),
    )


def _refuse_others(data: Mapping[str, Any], known: set[str]) -> None:
    others = sorted(set(data) - known)
    if others:
        raise UsageError(f"{others[0]!r} is not supported; supported: {', '.join(sorted(known))}")


def _prompt(body: Mapping[str, Any], expected: str | None) -> str | list[dict[str, Any]]:
    named = [key for key in ("prompt", "messages") if key in body]
    if len(named) != 1 or (expected and named[0] != expected):
        raise UsageError(f"a request needs {expected or 'either prompt or messages'}")
    value = body[named[0]]
    if named[0] == "prompt":
        if not isinstance(value, str) or not value:
            raise UsageError("prompt must be a text that is not empty")
        return value
    if not isinstance(value, list) or not value or not all(isinstance(message, dict) for message in value):
        raise UsageError("messages must be a list of objects with role and content")
    return value


def _options(body: Mapping[str, Any], defaults: BatchDefaults) -> BatchDefaults:
    _refuse_others(body, {"prompt", "messages", "stop", "ignore_eos", *_LENGTH, *_SAMPLING, *_IGNORED})
    lengths = [body[key] for key in _LENGTH if body.get(key) is not None]
    if any(not isinstance(length, int) or isinstance(length, bool) or length < -1 for length in lengths):
        raise UsageError("the number of tokens must be a whole number from 0 on, or -1 for no limit")
    stop = body.get("stop")
    stop = list(defaults.stop) if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or not all(isinstance(text, str) and text for text in stop):
        raise UsageError("stop must be a text or a list of texts, none of them empty")
    ignore_eos = body.get("ignore_eos", defaults.ignore_eos)
    if not isinstance(ignore_eos, bool):
        raise UsageError("ignore_eos must be true or false")
    values = {key: body[key] for key in _SAMPLING if body.get(key) is not None}
    for key, value in values.items():
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise UsageError(f"{key} must be a number, not {json.dumps(value)[:40]}")
    return BatchDefaults(
        n_predict=lengths[0] if lengths else defaults.n_predict,
        sampling=replace(defaults.sampling, **values),
        stop=tuple(stop),
        ignore_eos=ignore_eos,
    )


def _shown(options: BatchDefaults) -> list[Any]:
    sampling = {item.name: getattr(options.sampling, item.name) for item in fields(options.sampling)}
    return [options.n_predict, options.stop, options.ignore_eos, sampling]


class _Journal:
    """The answers that a run has written so far, one line each.

    Members:
        lines: digest and line by id.
    """

    def __init__(self, path: Path, output: Path, items: Sequence[BatchItem]) -> None:
        self.path, self.lines = path, dict[str, str]()
        self._file = _locked(path)
        wanted = {item.id: item.digest for item in items}
        for source in (output, path):
            for text in self._complete(source):
                entry = _entry(text)
                if entry is None or wanted.get(entry[0]) != entry[1]:
                    raise UsageError(
                        f"{source} has answers to other requests, or of another model or other options; move it away, or "
                        "give another -o"
                    )
                if "error" not in json.loads(text):  # a prompt that did not fit is tried again
                    self.lines[entry[0]] = text

    def _complete(self, source: Path) -> list[str]:
        """Return the whole lines of a file; a last line without its end was being written when the run was killed."""
        try:
            raw = source.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UsageError(f"{source} cannot be read: {error.strerror}") from error
        whole = raw[: raw.rfind(b"\n") + 1]
        if source == self.path and len(whole) < len(raw):
            self._file.truncate(len(whole))
        return whole.decode("utf-8", "replace").splitlines()

    def append(self, item: BatchItem, line: str) -> None:
        """Add an answer, and return when it is on the disk."""
        try:
            self._file.write(line.encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise EdgedecError(
                f"{self.path} cannot be written: {error.strerror}; the answers before this one are in it, and the same "
                "command goes on from there"
            ) from error
        self.lines[item.id] = line

    def close(self, *, complete: bool) -> None:
        """Close the file, and remove it if the output has everything."""
        if complete:
            self.path.unlink(missing_ok=True)
        self._file.close()


def _locked(path: Path) -> BufferedWriter:
    """Return the journal, opened for appending, which no other run has open.

    Raises:
        UsageError: it cannot be opened, or another run writes it.
    """
    try:
        file = path.open("ab")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}; give another -o") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise UsageError(f"another run is writing {path}; wait for its end, or give another -o") from error
    return file


def _entry(text: str) -> tuple[str, str] | None:
    try:
        data = json.loads(text)
        return str(data["id"]), str(data["request"])
    except (ValueError, TypeError, KeyError):
        return None


def run_batch(
    session: Session,
    items: Sequence[BatchItem],
    output: Path,
    *,
    interrupted: Callable[[], bool] = lambda: False,
    progress: Progress = silent,
) -> BatchResult:
    """Answer the requests that the journal or the output does not have yet, and write the output.

    Each line of the output is a JSON object with ``id``, ``request`` (the digest), and either ``text``, ``tokens``,
    ``stop_reason`` and ``timings``, or ``error``, for a prompt that does not fit the context.

    Args:
        session: the model; it writes as many answers at a time as it was opened for.
        items: the requests.
        output: file to write.
        interrupted: called in each step; True ends the run, and leaves the journal.
        progress: called with the number of answers.

    Raises:
        UsageError: the output has answers to other requests.
        EdgedecError: a file cannot be written, or the model failed.
    """
    journal = _Journal(journal_path(output), output, items)
    complete = False
    try:
        kept = len(journal.lines)
        complete = _answer(session, items, journal, interrupted, progress)
        if complete:
            with new_file(output) as path:
                path.write_text("".join(journal.lines[item.id] + "\n" for item in items), "utf-8")
    finally:
        journal.close(complete=complete)
    failed = sum('"error":' in line and "error" in json.loads(line) for line in journal.lines.values())
    return BatchResult(answered=len(journal.lines) - kept, kept=kept, failed=failed, interrupted=not complete)


def _answer(
    session: Session,
    items: Sequence[BatchItem],
    journal: _Journal,
    interrupted: Callable[[], bool],
    progress: Progress,
) -> bool:
    """Answer the requests that are not in the journal. Return False if some are left."""
    waiting = deque(_by_prefix(session, [item for item in items if item.id not in journal.lines], journal))
    running: list[tuple[BatchItem, AnswerStream]] = []
    sequences = session.run.sequences
    most = 2 * sequences if sequences > 1 else 1  # requests that wait in the scheduler may share a prefix
    try:
        while (waiting or running) and not interrupted():
            progress("requests", len(journal.lines), len(items))
            while waiting and len(running) < most:
                item, prompt = waiting.popleft()
                running.append((item, _begin(session, item, prompt)))
            session.scheduler.step()
            for item, stream in [pair for pair in running if pair[1].ended]:
                for _ in stream:  # raises the error of an answer that failed
                    pass
                journal.append(item, _line(item, stream))
            running = [pair for pair in running if not pair[1].ended]
    finally:
        for _, stream in running:
            stream.close()
    progress("requests", len(journal.lines), len(items))
    return not (waiting or running)


def _by_prefix(session: Session, items: Sequence[BatchItem], journal: _Journal) -> list[tuple[BatchItem, I32]]:
    """Return the requests with their prompts int32 [n] in the order of the ids; others get an error in the journal."""
    pairs = []
    for item in items:
        try:
            prompt = session.encode(item.prompt) if isinstance(item.prompt, str) else session.encode_chat(item.prompt)
            check_prompt(prompt, session.run.limits)
        except EdgedecError as error:
            journal.append(item, json.dumps({"id": item.id, "request": item.digest, "error": str(error)}))
        else:
            pairs.append((item, prompt))
    return sorted(pairs, key=lambda pair: (pair[1].tolist(), pair[0].line))


def _begin(session: Session, item: BatchItem, prompt: I32) -> AnswerStream:
    options = item.options
    return session.stream(
        prompt,
        n_predict=options.n_predict,
        sampling=options.sampling,
        stop=options.stop,
        ignore_eos=options.ignore_eos,
        whole=True,
    )


def _line(item: BatchItem, stream: AnswerStream) -> str:
    answer = stream.answer
    return json.dumps(
        {
            "id": item.id,
            "request": item.digest,
            "text": answer.text,
            "tokens": answer.tokens,
            "stop_reason": answer.stop_reason,
            "timings": answer.timings.as_json(),
        },
        ensure_ascii=False,
    )
