"""Measure many sequences in one pass: their speed together, the gaps that a long prompt causes, and the cost of the loop.

    .venv/bin/python -m benchmarks.server.serving [--threads 2] [--json]

The model is the embedded one padded to the shape of BitNet b1.58 0.73B, with keys and values of 16 bits. It is written on
first use (seconds, 488 MB). Tokens per second are those of all sequences together, in steps in which all of them write. All
figures of a table are of one session and one run, and ratios are of medians.

- ``decode``: tokens per second of 1, 2, 4 and 8 sequences, by the number of cached rows of each.
- ``prefix``: rows that 16 prompts with 500 common tokens run, and the seconds until all of them are read, beside those of
  the same prompts without common tokens.
- ``stall``: the longest gap between two tokens of a text while another prompt of 1,000 tokens is read, beside its median gap
  when it is alone and its median gap during the reading, and the seconds of the reading with the text and without it. It is
  measured in several rounds, because another program may interrupt any pass; the figures are medians of the rounds. The
  longest gap of the text alone, over about as many steps, shows how much of a long gap the machine itself causes, and the
  gap that 95 % do not exceed shows what the prompt causes.
- ``speculation``: tokens per second of 4 sequences that retell a story of their prompt, with and without guesses.
- ``drafted``: tokens per second of 4 and 8 sequences without guesses and with a draft model, whose passes are run for one
  text after another, or for all texts together. The three take turns.
- ``loop``: microseconds of a step outside of the target's pass, by the number of sequences.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from statistics import median
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.speculation.padded_model import padded_bundle
from benchmarks.support.prompts import prepare, read_prompts
from edgedec import demo
from edgedec.runtime.drafting import together
from edgedec.runtime.engine import engine
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.protocols import I32, Drafting, Pass, State, Ticket
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.answer import AnswerStream
from edgedec.runtime.session.session import Session

GREEDY = SamplingConfig(temperature=0)
COUNTS = (1, 2, 4, 8)
PASTS = (64, 512)
MOST_PROMPTS = 16
COPIED = 96  # tokens of each retold story
STEPS = 24  # measured steps of a round
ROUNDS = 3
STALL_ROUNDS = 5
MOST_ALONE = 300  # steps of a text alone after the reading of a prompt, at most
DRAFTED_COUNTS = (4, 8)
DRAFTED = 96  # tokens of each text of ``drafted``


class Timed:
    """The session's target, which notes the seconds and rows of its submissions."""

    def __init__(self, session: Session) -> None:
        self._inner = session.target
        self.seconds: list[float] = []
        self.rows: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def submit(self, work: Sequence[tuple[State, Pass]]) -> Ticket:
        """Submit the passes and note their time; the target runs them before it returns."""
        began = time.perf_counter()
        ticket = self._inner.submit(work)
        self.seconds.append(time.perf_counter() - began)
        self.rows.append(sum(len(item.ids) for _, item in work))
        return ticket


def prompts(session: Session, count: int, tokens: int, *, common: int = 0) -> list[I32]:
    """Return prompts of held-out stories, which differ after ``common`` tokens."""
    text = session.tokenizer.encode(demo.HELD_OUT.read_text("utf-8"))
    every = (
        len(text) - tokens
    ) // MOST_PROMPTS  # the first prompts are the same for every count, so that they are cached
    return [
        np.concatenate([text[:common], text[at * every : at * every + tokens - common]]).astype(np.int32)
        for at in range(count)
    ]


def begin(session: Session, ids: Sequence[I32], **options: Any) -> list[AnswerStream]:
    """Start one answer for each prompt and run steps until all of them have written a token."""
    streams = [session.stream(prompt, sampling=GREEDY, ignore_eos=True, **options) for prompt in ids]
    while any(not stream.answer.tokens for stream in streams):
        session.scheduler.step()
    return streams


def end(streams: Sequence[AnswerStream]) -> None:
    """End the answers."""
    for stream in streams:
        stream.close()


def steps(session: Session, streams: Sequence[AnswerStream], count: int) -> tuple[list[float], int]:
    """Run steps and return the seconds of each, and the tokens of all streams."""
    before, seconds = sum(len(stream.answer.tokens) for stream in streams), []
    for _ in range(count):
        began = time.perf_counter()
        session.scheduler.step()
        seconds.append(time.perf_counter() - began)
    return seconds, sum(len(stream.answer.tokens) for stream in streams) - before


def decode(session: Session) -> dict[str, dict[str, float]]:
    """Return the tokens per second by past and number of sequences; sizes take turns, so that drifts hit all of them."""
    table: dict[str, dict[str, float]] = {}
    for past in PASTS:
        speeds: dict[int, list[float]] = {count: [] for count in COUNTS}
        for _ in range(ROUNDS):
            for count in COUNTS:
                streams = begin(session, prompts(session, count, past))
                seconds, tokens = steps(session, streams, STEPS)
                speeds[count].append(tokens / STEPS / median(seconds))
                end(streams)
        table[str(past)] = {str(count): median(values) for count, values in speeds.items()}
    return table


def prefix(session: Session, timed: Timed) -> dict[str, dict[str, float]]:
    """Return rows and seconds until 16 prompts of 532 tokens have been read, 8 at a time."""
    result = {}
    for name, common in (("common", 500), ("different", 0)):
        ids = prompts(session, 16, 532, common=common)
        session.scheduler.forget()
        timed.rows.clear()
        began = time.perf_counter()
        streams = [session.stream(prompt, n_predict=1, sampling=GREEDY, ignore_eos=True) for prompt in ids]
        while not all(stream.ended for stream in streams):
            session.scheduler.step()
        result[name] = {"rows": sum(timed.rows), "seconds": time.perf_counter() - began}
        end(streams)
    return result


def stall(session: Session) -> dict[str, Any]:
    """Return the gaps of a text alone and while a prompt of 1,000 tokens is read, in milliseconds, and the prompt's seconds.

    Each figure is the median of the rounds, and ``rounds`` has the figures of each.
    """
    rounds = [_stall_round(session) for _ in range(STALL_ROUNDS)]
    return {name: median([row[name] for row in rounds]) for name in rounds[0]} | {"rounds": rounds}


def _stall_round(session: Session) -> dict[str, float]:
    long_prompt = prompts(session, 1, 1000)[0][::-1].copy()
    session.scheduler.forget()
    began = time.perf_counter()
    end(begin(session, [long_prompt], n_predict=1))
    unaccompanied = time.perf_counter() - began
    session.scheduler.forget()
    (text,) = begin(session, prompts(session, 1, 64))
    alone, _ = steps(session, [text], 64)
    stream, gaps = session.stream(long_prompt, n_predict=1, sampling=GREEDY, ignore_eos=True), []
    while not stream.ended:
        seconds, _ = steps(session, [text], 1)
        gaps += seconds
    afterwards, _ = steps(session, [text], min(len(gaps), MOST_ALONE))
    end([text, stream])
    return {
        "alone_ms": 1000 * median(alone),
        "longest_alone_ms": 1000 * max(alone + afterwards),
        "slow_ms": 1000 * float(np.quantile(gaps, 0.95)),
        "median_ms": 1000 * median(gaps),
        "longest_ms": 1000 * max(gaps),
        "slow_over_alone": float(np.quantile(gaps, 0.95)) / median(alone),
        "longest_over_alone": max(gaps) / median(alone),
        "longest_alone_over_alone": max(alone + afterwards) / median(alone),
        "longest_over_median": max(gaps) / median(gaps),
        "seconds": sum(gaps),
        "seconds_without_text": unaccompanied,
    }


def loop(session: Session, timed: Timed) -> dict[str, float]:
    """Return the microseconds of a step outside of the target."""
    table = {}
    for count in COUNTS:
        streams = begin(session, prompts(session, count, 64))
        timed.seconds.clear()
        seconds, _ = steps(session, streams, 4 * STEPS)
        table[str(count)] = 1e6 * median(np.array(seconds) - np.array(timed.seconds))
        end(streams)
    return table


def copying(path: str, threads: int) -> dict[str, float]:
    """Return the tokens per second of 4 sequences that retell a story of their prompt, without and with guesses."""
    with Session.open("demo", ctx_size=1024) as small:
        ids = [prepare(small, prompt, COPIED) for prompt in read_prompts(None, 4) if prompt.kind == "copying"]
    speeds = {}
    for drafter in ("none", "ngram"):
        spec = SpecConfig(drafter=drafter)
        with Session.open(path, threads=threads, ctx_size=1024, sequences=4, spec=spec) as session:
            end(begin(session, ids, n_predict=1))  # the prompts are cached from here on, so all texts begin together
            streams = begin(session, ids, n_predict=COPIED)
            began, before = time.perf_counter(), sum(len(stream.answer.tokens) for stream in streams)
            while not any(stream.ended for stream in streams):  # all of them write
                session.scheduler.step()
            tokens = sum(len(stream.answer.tokens) for stream in streams) - before
            speeds[drafter] = tokens / (time.perf_counter() - began)
            end(streams)
    return speeds | {"ratio": speeds["ngram"] / speeds["none"]}


def one_by_one(draftings: Sequence[Drafting[Any]]) -> list[Any]:
    """Run the drafting of one text after another."""
    return [result for drafting in draftings for result in together([drafting])]


def drafted(path: str, threads: int, *, clock: Callable[[], float] = time.perf_counter) -> dict[str, dict[str, float]]:
    """Return the tokens per second by number of sequences and way of drafting, in steps in which all sequences write."""
    table = {}
    for count in DRAFTED_COUNTS:
        with ExitStack() as stack:
            modes = {}
            for name, run in (("none", together), ("one_by_one", one_by_one), ("together", together)):
                spec = SpecConfig() if name == "none" else SpecConfig(drafter="model", draft="demo-draft")
                session = Session.open(path, threads=threads, ctx_size=512, kv_bits=16, sequences=count, spec=spec)
                modes[name] = stack.enter_context(session), run
            speeds: dict[str, list[float]] = {name: [] for name in modes}
            for _ in range(ROUNDS):
                for name, (session, run) in modes.items():
                    with mock.patch.object(engine, "together", run):
                        speeds[name].append(_speed(session, count, clock))
        table[str(count)] = {name: median(values) for name, values in speeds.items()}
    return table


def _speed(session: Session, count: int, clock: Callable[[], float]) -> float:
    """Return the tokens per second until the first of the texts has ``DRAFTED`` tokens."""
    streams = begin(session, prompts(session, count, 64), n_predict=DRAFTED)
    began, before = clock(), sum(len(stream.answer.tokens) for stream in streams)
    while not any(stream.ended for stream in streams):
        session.scheduler.step()
    speed = (sum(len(stream.answer.tokens) for stream in streams) - before) / (clock() - began)
    end(streams)
    return speed


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2, metavar="N")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    path = str(padded_bundle(demo.bundle_path()))
    data: dict[str, Any] = {}
    with Session.open(path, threads=options.threads, ctx_size=1024, kv_bits=16, sequences=8) as session:
        timed = Timed(session)
        session.scheduler.engine.target = timed
        data["kernel"], data["threads"] = session.target.info.kernel, options.threads
        data["decode"] = decode(session)
        data["eight_over_one"] = {past: row["8"] / row["1"] for past, row in data["decode"].items()}
        data["prefix"] = prefix(session, timed)
        data["stall"] = stall(session)
        data["loop_us"] = loop(session, timed)
    data["speculation"] = copying(path, options.threads)
    data["drafted"] = drafted(path, options.threads)
    if options.json:
        print(json.dumps(data))
        return
    _print(data)


def _print(data: dict[str, Any]) -> None:
    print(f"kernel {data['kernel']}, {data['threads']} threads; tokens per second of all sequences together")
    print("past  " + "".join(f"{count:>9}" for count in COUNTS) + "   8 over 1")
    for past, row in data["decode"].items():
        print(
            f"{past:<6}"
            + "".join(f"{row[str(count)]:>9.1f}" for count in COUNTS)
            + f"{data['eight_over_one'][past]:>11.2f}"
        )
    for name, row in data["prefix"].items():
        print(f"16 prompts of 532 tokens, beginnings {name}: {row['rows']:.0f} rows, {row['seconds']:.1f} s")
    stalled = data["stall"]
    print(
        f"gap of a text: median {stalled['alone_ms']:.1f} ms alone (longest {stalled['longest_alone_ms']:.1f}); beside a "
        f"prompt of 1,000 tokens median {stalled['median_ms']:.1f} ms, 95 % below {stalled['slow_ms']:.1f} ms "
        f"({stalled['slow_over_alone']:.2f} times the median alone), longest {stalled['longest_ms']:.1f} ms: "
        f"{stalled['longest_over_alone']:.2f} times the first, {stalled['longest_over_median']:.2f} times the second "
        f"median; rounds: {', '.join(format(row['longest_over_alone'], '.2f') for row in stalled['rounds'])}"
    )
    print(f"the prompt: {stalled['seconds']:.1f} s beside the text, {stalled['seconds_without_text']:.1f} s without it")
    print("loop: " + ", ".join(f"{count} sequences {value:.0f} us" for count, value in data["loop_us"].items()))
    speeds = data["speculation"]
    print(
        f"4 copying texts: {speeds['none']:.1f} tokens/s plain, {speeds['ngram']:.1f} with guesses ({speeds['ratio']:.2f})"
    )
    for count, row in data["drafted"].items():
        print(
            f"{count} texts with a draft model: {row['none']:.1f} tokens/s plain, {row['one_by_one']:.1f} drafted one after "
            f"another, {row['together']:.1f} drafted together ({row['together'] / row['one_by_one']:.2f})"
        )


if __name__ == "__main__":
    main()
