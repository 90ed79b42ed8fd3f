"""Measure eight clients of ``edgedec serve`` beside eight clients of llama.cpp's ``llama-server``.

    .venv/bin/python -m benchmarks.server.clients [--clients 8] [--tokens 128] [--rounds 5] [--threads 2] [--json]

Both servers run on this machine with the same model, the embedded one padded to the shape of BitNet b1.58 0.73B: trits as
TQ2_0 for llama.cpp, which is built on first use from the sources that ``benchmarks/peers/llama_cpp.py`` downloads. Both keep
keys and values in 16 bits, run the model on the same number of threads, and make no guesses; a further row has edgedec's
drafter ``ngram``. Other settings are the servers' own defaults.

In a round each server in turn gets the same requests at the same moment: streams of ``/completion``, which both servers know
and which gives the ids of each event, with prompts of 64 ids, greedy, without an end. No prompt is sent twice, so no cache
helps.

- ``tokens_per_second``: tokens of all streams in the time in which all of them write.
- ``first_ms``: time until the first token of a stream, as a median and the longest.
- ``gap_ms``: time between two events of a stream, as a median and the longest.
- ``ratio``: edgedec's tokens per second over llama.cpp's in the same round, from the smallest to the largest.
- ``same_ids``: share of the ids that both servers wrote at the same place of the same text. It is small: llama.cpp may
  choose ids of the padding, whose logits are 0 and which edgedec excludes, and after a first difference texts go apart.
  A pass costs the same whatever its ids are.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cpu.decode import Others, cpu_name
from benchmarks.peers import gguf_models, llama_cpp
from benchmarks.server.server_process import HOST, ServerProcess
from benchmarks.speculation.padded_model import padded_bundle
from edgedec import __version__, demo
from edgedec.bundle.bundle import Bundle
from edgedec.cli.console import progress
from edgedec.errors import DeviceError, EdgedecError, UsageError
from edgedec.host.paths import cache_folder
from edgedec.runtime.session.session import Session

PROMPT = 64  # ids of a prompt
PEER, PLAIN, GUESSING = "llama-server", "edgedec", "edgedec, ngram"
REVISION = 1  # revision of the GGUF that benchmarks/peers/gguf_models.py writes; part of its name


@dataclass(kw_only=True)
class Stream:
    """The events of one answer: the moment of each, in seconds, and its number of ids."""

    sent: float = 0.0
    moments: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)

    def add(self, event: Mapping[str, Any], moment: float) -> None:
        """Add an event. The last one of llama.cpp's repeats no ids, and edgedec's has those without a text."""
        if ids := event["tokens"]:
            self.moments.append(moment)
            self.counts.append(len(ids))
            self.ids += ids


def read_stream(
    server: ServerProcess, prompt: Sequence[int], tokens: int, stream: Stream, go: threading.Barrier
) -> None:
    """Send a request once all clients are ready, and note its events."""
    body = {"prompt": list(prompt), "n_predict": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    go.wait()
    stream.sent = time.perf_counter()
    with server.post("/completion", body) as response:
        for line in response:
            if line.startswith(b"data: {"):
                moment = time.perf_counter()
                stream.add(json.loads(line[len(b"data: ") :]), moment)


def run_clients(server: ServerProcess, prompts: Sequence[Sequence[int]], tokens: int) -> list[Stream]:
    """Return the streams of clients that ask at the same moment.

    Raises:
        DeviceError: a client failed, or a text has another length.
    """
    streams, failures = [Stream() for _ in prompts], []
    go = threading.Barrier(len(prompts))

    def client(at: int) -> None:
        try:
            read_stream(server, prompts[at], tokens, streams[at], go)
        except (EdgedecError, OSError, ValueError, KeyError) as error:
            failures.append(error)

    threads = [threading.Thread(target=client, args=(at,)) for at in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise DeviceError(f"a client of {server.name} failed: {failures[0]}")
    for stream in streams:
        if len(stream.ids) != tokens:
            raise DeviceError(f"{server.name} wrote {len(stream.ids)} ids instead of {tokens}")
    return streams


def rate(streams: Sequence[Stream]) -> float:
    """Return the tokens per second of all streams, from the first token of the last to the last token of the first.

    Raises:
        UsageError: there is no time in which all of them write.
    """
    begin = max(stream.moments[0] for stream in streams)
    end = min(stream.moments[-1] for stream in streams)
    if not begin < end:
        raise UsageError("the streams do not overlap; ask for more --tokens")
    written = sum(
        count
        for stream in streams
        for moment, count in zip(stream.moments, stream.counts, strict=True)
        if begin < moment <= end
    )
    return written / (end - begin)


def figures(rounds: Sequence[Sequence[Stream]]) -> dict[str, Any]:
    """Return the figures of a server over all rounds."""
    streams = [stream for round_ in rounds for stream in round_]
    firsts = [1000 * (stream.moments[0] - stream.sent) for stream in streams]
    gaps = [
        1000 * (later - earlier)
        for stream in streams
        for earlier, later in zip(stream.moments, stream.moments[1:], strict=False)
    ]
    rates = [rate(streams) for streams in rounds]
    return {
        "tokens_per_second": median(rates),
        "tokens_per_second_range": [min(rates), max(rates)],
        "first_ms": {"median": median(firsts), "longest": max(firsts)},
        "gap_ms": {"median": median(gaps), "longest": max(gaps)},
    }


def ratios(ours: Sequence[Sequence[Stream]], peer: Sequence[Sequence[Stream]]) -> dict[str, float]:
    """Return our tokens per second over the peer's in the same round."""
    values = [rate(one) / rate(other) for one, other in zip(ours, peer, strict=True)]
    return {"smallest": min(values), "median": median(values), "largest": max(values)}


def same_ids(ours: Sequence[Sequence[Stream]], peer: Sequence[Sequence[Stream]]) -> float:
    """Return the share of ids that are the same at the same place."""
    pairs = [
        one == other
        for our_round, peer_round in zip(ours, peer, strict=True)
        for our_stream, peer_stream in zip(our_round, peer_round, strict=True)
        for one, other in zip(our_stream.ids, peer_stream.ids, strict=True)
    ]
    return sum(pairs) / len(pairs)


def make_prompts(count: int) -> list[list[int]]:
    """Return different prompts of ``PROMPT`` ids, from held-out stories, that begin with different ids as far as possible.

    Raises:
        UsageError: there are not so many.
    """
    with Session.open("demo", ctx_size=PROMPT) as session:
        ids = session.tokenizer.encode(demo.HELD_OUT.read_text("utf-8"))
    if count * PROMPT > len(ids):
        raise UsageError(f"there are {len(ids) // PROMPT} prompts, not {count}; ask for fewer --clients or --rounds")
    return [ids[at * PROMPT : (at + 1) * PROMPT].tolist() for at in range(count)]


def gguf_of(bundle: Bundle) -> Path:
    """Return the path of the model as a GGUF, which is written on first use."""
    path = cache_folder() / "benchmarks" / f"{bundle.sha256[:12]}.v{REVISION}.gguf"
    if not path.exists():
        with progress("llama.cpp's model, once") as bar:
            gguf_models.write_llama(bundle, path, progress=bar)
    return path


def commands(
    llama: llama_cpp.LlamaCpp, bundle: Path, gguf: Path, *, clients: int, threads: int, positions: int
) -> dict[str, list[str]]:
    """Return the command line of each server. llama.cpp divides its context among the clients."""
    peer = [str(llama.program("llama-server")), "--model", str(gguf), "--ctx-size", str(clients * positions)]
    peer += ["--threads-batch", str(threads), "--cache-type-k", "f16", "--cache-type-v", "f16"]
    ours = [
        sys.executable,
        "-m",
        "edgedec",
        "serve",
        "--model",
        str(bundle),
        "--ctx-size",
        str(positions),
        "--kv-bits",
        "16",
    ]
    shared = ["--threads", str(threads), "--parallel", str(clients), "--host", HOST, "--port", "{port}"]
    return {PEER: peer + shared, PLAIN: ours + shared, GUESSING: [*ours, *shared, "--spec-type", "ngram"]}


def measure(*, clients: int, tokens: int, rounds: int, threads: int) -> dict[str, Any]:
    """Return all figures.

    Raises:
        EdgedecError: a tool is missing, or a server failed.
    """
    with progress("llama.cpp") as bar:
        llama = llama_cpp.prepare(bar)
    with progress("our model") as bar:
        path = padded_bundle(demo.bundle_path(), bar)
    prompts = make_prompts(clients * (rounds + 1))
    lines = commands(
        llama, path, gguf_of(Bundle.open(path)), clients=clients, threads=threads, positions=2 * PROMPT + tokens
    )
    taken: dict[str, list[list[Stream]]] = {name: [] for name in lines}
    with ExitStack() as stack:
        servers = [stack.enter_context(ServerProcess(name, line)) for name, line in lines.items()]
        others = Others()
        with progress("rounds") as bar:
            for number in range(rounds + 1):
                some = prompts[number * clients : (number + 1) * clients]
                # Each round begins with another server, so that drifts of the clock hit all of them.
                for at in range(len(servers)):
                    server = servers[(number + at) % len(servers)]
                    taken[server.name].append(run_clients(server, some, tokens))
                bar("rounds", number + 1, rounds + 1)
        share = others.share()
    counted = {name: streams[1:] for name, streams in taken.items()}  # the first round warms up
    return {
        "cpu": cpu_name(),
        "edgedec": __version__,
        "llama_cpp": llama.version,
        "clients": clients,
        "tokens": tokens,
        "prompt_tokens": PROMPT,
        "rounds": rounds,
        "threads": threads,
        "ratio": ratios(counted[PLAIN], counted[PEER]),
        "ratio_with_guesses": ratios(counted[GUESSING], counted[PEER]),
        "same_ids": same_ids(counted[PLAIN], counted[PEER]),
        "servers": {name: figures(streams) for name, streams in counted.items()},
        "all_processes_share": share,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("clients", 8), ("tokens", 128), ("rounds", 5), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=value, metavar="N")
    parser.add_argument("--json", action="store_true")
    options = vars(parser.parse_args())
    as_json = options.pop("json")
    try:
        data = measure(**options)
    except EdgedecError as error:
        sys.exit(f"server_clients: {error}")
    if as_json:
        print(json.dumps(data))
        return
    print(f"{data['clients']} clients, {data['threads']} threads, {data['llama_cpp']}")
    print(f"{'server':<16}{'tokens/s':>10}{'first token':>20}{'gap':>18}   (median, longest; ms)")
    for name, row in data["servers"].items():
        first, gap = row["first_ms"], row["gap_ms"]
        print(
            f"{name:<16}{row['tokens_per_second']:>10.1f}{first['median']:>12.0f}{first['longest']:>8.0f}"
            f"{gap['median']:>10.1f}{gap['longest']:>8.1f}"
        )
    for name, key in ((PLAIN, "ratio"), (GUESSING, "ratio_with_guesses")):
        value = data[key]
        print(
            f"{name} over {PEER}: {value['smallest']:.2f} in the worst round, {value['median']:.2f} as a median, "
            f"{value['largest']:.2f} in the best"
        )


if __name__ == "__main__":
    main()
