"""Test offline work: equal texts, files that are refused, and runs that are ended and go on."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest

from edgedec.errors import EdgedecError, UsageError
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.batch import BatchDefaults, BatchItem, journal_path, read_batch, run_batch
from edgedec.runtime.session.session import Session

DEFAULTS = BatchDefaults(n_predict=6, sampling=SamplingConfig(temperature=0.8, seed=11))


def lines_of(*requests: Any) -> str:
    return "".join(json.dumps(request) + "\n" for request in requests)


REQUESTS: list[dict[str, Any]] = [
    {"prompt": "Once upon a time there was a bear. One day"},
    {"prompt": "The little dog", "temperature": 0, "n_predict": 9},
    {"id": "a", "prompt": "Once upon a time there was a bear. The", "seed": 3, "stop": "."},
    {"id": "b", "messages": [{"role": "user", "content": "Who is it?"}], "max_tokens": 4},
    {"custom_id": "c", "url": "/v1/completions", "body": {"model": "x", "prompt": "One day", "max_tokens": 3}},
]


def write(folder: Path, text: str) -> Path:
    path = folder / "requests with a space.jsonl"
    path.write_text(text, "utf-8")
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def run(session: Session, items: list[BatchItem], output: Path, steps: int | None = None) -> Any:
    left = iter(range(steps)) if steps is not None else None
    return run_batch(session, items, output, interrupted=lambda: left is not None and next(left, None) is None)


@pytest.mark.thorough
def test_texts_are_those_of_generate_in_the_order_of_the_requests(tmp_path: Path) -> None:
    with Session.open("demo", threads=1, ctx_size=128, sequences=3) as session:
        items = read_batch(write(tmp_path, lines_of(*REQUESTS)), session.bundle.sha256, DEFAULTS)
        result = run(session, items, tmp_path / "out.jsonl")
    assert (result.answered, result.kept, result.failed, result.interrupted) == (5, 0, 0, False)
    answers = read(tmp_path / "out.jsonl")
    assert [answer["id"] for answer in answers] == ["1", "2", "a", "b", "c"]
    assert not journal_path(tmp_path / "out.jsonl").exists()
    with Session.open("demo", threads=1, ctx_size=128) as session:
        for item, answer in zip(items, answers, strict=True):
            prompt = item.prompt if isinstance(item.prompt, str) else session.encode_chat(item.prompt)
            options = item.options
            alone = session.generate(prompt, n_predict=options.n_predict, sampling=options.sampling, stop=options.stop)
            assert (alone.text, alone.tokens, alone.stop_reason) == tuple(
                answer[key] for key in ("text", "tokens", "stop_reason")
            )


def test_the_texts_of_a_batch_are_read_at_their_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, options = Session.stream, list[dict[str, Any]]()

    def recorded(session: Session, prompt: Any, **given: Any) -> Any:
        options.append(given)
        return stream(session, prompt, **given)

    monkeypatch.setattr(Session, "stream", recorded)
    with Session.open("demo", threads=1, ctx_size=64) as session:
        items = read_batch(write(tmp_path, lines_of(REQUESTS[4])), session.bundle.sha256, DEFAULTS)
        run(session, items, tmp_path / "out.jsonl")
    assert [one["whole"] for one in options] == [True]


def test_a_run_goes_on_from_its_journal_after_any_end(tmp_path: Path) -> None:
    requests = [{"prompt": "Once upon a time", "seed": seed} for seed in range(7)]
    path, output = write(tmp_path, lines_of(*requests)), tmp_path / "out.jsonl"
    with Session.open("demo", threads=1, ctx_size=64, sequences=2) as session:
        items = read_batch(path, session.bundle.sha256, DEFAULTS)
        run(session, items, tmp_path / "whole.jsonl")
        assert run(session, items, output, 9).interrupted
        partial = journal_path(output)
        first = len(read(partial))
        assert 0 < first < 7
        assert not output.exists()
        with partial.open("ab") as file:
            file.write(b'{"id": "6", "request": "')  # the line that a killed run was writing
        result = run(session, items, output)
        assert (result.kept, result.answered) == (first, 7 - first)
        assert not partial.exists()
        assert [line["text"] for line in read(output)] == [line["text"] for line in read(tmp_path / "whole.jsonl")]
        before = output.read_bytes()
        assert run(session, items, output).kept == 7  # a second run has nothing to do
        assert output.read_bytes() == before


@pytest.mark.parametrize("place", ["output", "journal"])
def test_answers_to_other_requests_are_not_touched(tmp_path: Path, place: str) -> None:
    output = tmp_path / "out.jsonl"
    path = output if place == "output" else journal_path(output)
    with Session.open("demo", threads=1, ctx_size=64) as session:
        items = read_batch(write(tmp_path, lines_of(REQUESTS[0])), session.bundle.sha256, DEFAULTS)
        for content in ("my notes\n", '{"id": "1", "request": "0"}\n', '{"id": "x"}\n', '["id"]\n', "\x00\n"):
            path.write_text(content)
            with pytest.raises(UsageError, match="has answers to other requests"):
                run(session, items, output)
            assert path.read_text() == content


def test_other_options_are_other_requests(tmp_path: Path) -> None:
    path = write(tmp_path, lines_of(REQUESTS[0]))
    digests = {
        read_batch(path, model, defaults)[0].digest
        for model in ("m1", "m2")
        for defaults in (
            DEFAULTS,
            BatchDefaults(n_predict=7),
            BatchDefaults(stop=("x",)),
            BatchDefaults(ignore_eos=True),
        )
    }
    assert len(digests) == 8


def test_two_runs_do_not_write_one_journal(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    with Session.open("demo", threads=1, ctx_size=64) as session, journal_path(output).open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        items = read_batch(write(tmp_path, lines_of(REQUESTS[0])), session.bundle.sha256, DEFAULTS)
        with pytest.raises(UsageError, match="another run is writing"):
            run(session, items, output)


def test_a_prompt_that_does_not_fit_has_an_error_and_is_tried_again(tmp_path: Path) -> None:
    long = {"id": "long", "prompt": "One day " * 60}
    path, output = write(tmp_path, lines_of(long, REQUESTS[1])), tmp_path / "out.jsonl"
    for context, failed in ((64, 1), (512, 0)):
        with Session.open("demo", threads=1, ctx_size=context, sequences=2) as session:
            result = run(session, read_batch(path, session.bundle.sha256, DEFAULTS), output)
        assert (result.failed, result.kept) == (failed, 1 - failed)
        assert ("error" in read(output)[0], "error" in read(output)[1]) == (bool(failed), False)


def test_a_full_disk_keeps_the_answers_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []

    def fsync(descriptor: int) -> None:
        if len(synced) == 1:
            raise OSError(28, "No space left on device")
        synced.append(descriptor)

    output = tmp_path / "out.jsonl"
    with Session.open("demo", threads=1, ctx_size=64) as session:
        items = read_batch(write(tmp_path, lines_of(*REQUESTS[:3])), session.bundle.sha256, DEFAULTS)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            with pytest.raises(EdgedecError, match="No space left on device; the answers before this one are in it"):
                run(session, items, output)
        assert run(session, items, output).kept >= 1
    assert len(read(output)) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no request"),
        ("\n\n", "has no request"),
        ("{", "line 1: the line is not JSON"),
        ("[" * 100_000, "line 1: the line is not JSON"),
        ('"Once"', "line 1: the line must be a JSON object"),
        (lines_of(REQUESTS[0], {"prompt": ""}), "line 2: prompt must be a text that is not empty"),
        (lines_of({"prompt": 5}), "line 1: prompt must be"),
        (lines_of({"text": "x"}), "needs either prompt or messages"),
        (lines_of({"prompt": "x", "messages": []}), "needs either prompt or messages"),
        (lines_of({"messages": ["x"]}), "messages must be a list of objects"),
        (lines_of({"prompt": "x", "temprature": 1}), "'temprature' is not supported; supported: "),
        (lines_of({"prompt": "x", "temperature": "hot"}), "temperature must be a number"),
        (lines_of({"prompt": "x", "temperature": -1}), "temperature must be >= 0"),
        (lines_of({"prompt": "x", "temperature": float("nan")}), "temperature must be"),
        (lines_of({"prompt": "x", "n_predict": 1.5}), "the number of tokens must be a whole number"),
        (lines_of({"prompt": "x", "stop": [""]}), "stop must be"),
        (lines_of({"prompt": "x", "stop": 3}), "stop must be"),
        (lines_of({"prompt": "x", "ignore_eos": 1}), "ignore_eos must be"),
        (lines_of({"prompt": "x", "id": [1]}), "id must be"),
        (lines_of({"prompt": "x", "id": 1}, {"prompt": "y", "id": "1"}), "line 2: line 1 has the id '1', too"),
        (lines_of({"url": "/v1/embeddings", "body": {"prompt": "x"}}), "must be a POST to one of"),
        (lines_of({"url": "/v1/completions", "body": {"messages": [{}]}}), "a request needs prompt"),
        (lines_of({"body": {"prompt": "x"}, "more": 1}), "'more' is not supported"),
        (lines_of({"body": 3}), "body must be a JSON object"),
        (lines_of({"url": ["x"], "body": {"prompt": "x"}}), "must be a POST"),
    ],
)
def test_a_file_that_is_no_batch_is_refused_by_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_batch(write(tmp_path, text), "model", DEFAULTS)
    assert message in str(caught.value)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "binary"
    path.write_bytes(b'{"prompt": "\xff"}\n')
    with pytest.raises(UsageError, match="line 1 is not UTF-8"):
        read_batch(path, "model", DEFAULTS)
    with pytest.raises(UsageError, match="there is no such file; check the spelling of the path"):
        read_batch(tmp_path / "none", "model", DEFAULTS)
