"""Send the largest requests that a server may get, under many memory budgets, and compare its memory with the budget.

    .venv/bin/python -m benchmarks.server.largest_requests [--budgets 40] [--from 28MiB] [--to 512MiB] [--only NAME ...]

For each budget ``edgedec serve -m demo`` is started, and gets each request by itself, twice. It holds if

- ``peak_bytes``, the server's own measure of the charged memory, is within the budget;
- so is the growth of the greatest resident memory (VmHWM) over the process without the model;
- each answer has status 200, 400 (what is asked for has a limit of its own), or 413 or 429 with figures.

The process without the model is its resident memory when the server is idle, less what the meter charges then. Exit code 1
if something does not hold.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.server.server_process import HOST, ServerProcess
from edgedec.cli.console import note, print_json, print_table
from edgedec.memory.byte_sizes import parse_bytes

_MIB = 1 << 20
_BODY = _MIB - 64  # bytes of a body that the server reads by default, less its other fields
_FIGURES = re.compile(r"\d[\d.,]* ?(?:[KMG]i?B|bytes|tokens|texts|prompts)")
_WORDS = ("once", "upon", "a", "time", "there", "was", "little", "girl", "who", "liked")


def _words(nbytes: int) -> str:
    draw = random.Random(1)
    return " ".join(draw.choice(_WORDS) for _ in range(nbytes // 3))[:nbytes]


def _signs(nbytes: int) -> str:
    draw = random.Random(2)
    signs = [chr(code) for code in range(33, 127) if chr(code) not in '"\\']
    return "".join(draw.choices(signs, k=nbytes))


def _ids(count: int, largest: int) -> list[int]:
    draw = random.Random(3)
    return [draw.randint(3, largest) for _ in range(count)]


def _properties(count: int) -> dict[str, Any]:
    names = [f"property number {number}" for number in range(count)]
    return {
        "type": "object",
        "properties": {name: {"type": "string"} for name in names},
        "required": names,
        "additionalProperties": False,
    }


def _messages(count: int, nbytes: int) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[number % 2], "content": _words(nbytes)} for number in range(count)][: count - 1 + count % 2]


def requests() -> Mapping[str, tuple[str, Any]]:
    """Return the requests: name -> (path, body). A body of bytes is sent as it is."""
    long, chat, text, native = 900, "/v1/chat/completions", "/v1/completions", "/completion"
    some = {"temperature": 0, "max_tokens": 8}
    ask = {"messages": [{"role": "user", "content": "Tell me a story."}], **some}
    tools = [
        {
            "type": "function",
            "function": {"name": f"tool_{number}", "description": "x" * 400, "parameters": _properties(4)},
        }
        for number in range(128)
    ]
    return {
        "tokenize words": ("/tokenize", {"content": _words(_BODY)}),
        "tokenize signs": ("/tokenize", {"content": _signs(_BODY)}),
        "tokenize signs, pieces": ("/tokenize", {"content": _signs(_BODY), "with_pieces": True}),
        "tokenize wide characters": ("/tokenize", {"content": "\u4e2d\u6587" * (_BODY // 6)}),
        "tokenize without controls": ("/tokenize", {"content": "</s>" * (_BODY // 4), "parse_special": False}),
        "tokenize a medium text, pieces": ("/tokenize", {"content": _words(60_000), "with_pieces": True}),
        "detokenize small ids": ("/detokenize", {"tokens": [5] * (_BODY // 3)}),
        "detokenize large ids": ("/detokenize", {"tokens": _ids(_BODY // 7, 2000)}),
        "echo and log-probabilities": (text, {"prompt": _words(4_000), "echo": True, "logprobs": 20, "max_tokens": 0}),
        "echo, 16 texts": (text, {"prompt": _words(2_000), "echo": True, "logprobs": 20, "n": 16, **some}),
        "echo, 64 prompts": (text, {"prompt": [_words(1_000)] * 64, "echo": True, "logprobs": 20, "max_tokens": 0}),
        "a prompt of the whole context": (text, {"prompt": _ids(long, 2000), **some}),
        "a prompt of long tokens": (text, {"prompt": " " * 30_000, **some}),
        "a prompt of wide characters": (text, {"prompt": "\u4e2d\u6587" * 15_000, **some}),
        "64 prompts of the whole context": (text, {"prompt": [_ids(long, 2000)] * 64, "max_tokens": 1}),
        "whole answers with log-probabilities": (
            chat,
            ask | {"logprobs": True, "top_logprobs": 20, "max_tokens": 700, "n": 4},
        ),
        "a stream with log-probabilities": (
            chat,
            ask | {"logprobs": True, "top_logprobs": 20, "max_tokens": 900, "stream": True},
        ),
        "probabilities after sampling": (
            native,
            {"prompt": "Once", "n_probs": 20, "post_sampling_probs": True, "n_predict": 800, "ignore_eos": True},
        ),
        "2,047 messages": (chat, {"messages": _messages(2_047, 2), **some}),
        "a long message": (chat, {"messages": _messages(1, _BODY // 2), **some}),
        "a message of control tokens": (chat, {"messages": [{"role": "user", "content": "</s>" * 7_000}], **some}),
        "names of a template": (chat, ask | {"chat_template_kwargs": {"x": list(range(130_000))}}),
        "logit biases": (
            text,
            {"prompt": "Once", "logit_bias": [[_signs(250) + str(n), 1] for n in range(1_024)], **some},
        ),
        "stop texts": (text, {"prompt": "Once", "stop": [_words(250) + str(n) for n in range(16)], **some}),
        "128 tools": (chat, ask | {"tools": tools}),
        "a schema of 300 properties": (chat, ask | {"response_format": _format(_properties(300))}),
        "an enumeration of 500 texts": (
            chat,
            ask | {"response_format": _format({"enum": [f"text {n}" for n in range(500)]})},
        ),
        "a large grammar": (native, {"prompt": "Once", "n_predict": 8, "grammar": _grammar(2_000)}),
        "a chat in the template": ("/apply-template", {"messages": _messages(2_047, 400)}),
        "the tokens of a chat": ("/v1/chat/completions/input_tokens", {"messages": _messages(2_047, 2)}),
        "lists in lists": (text, ('{"prompt": [' + "[]," * (_BODY // 3 - 9) + "[]]}").encode()),
        "objects": (text, ('{"metadata": [' + "{}," * (_BODY // 3 - 20) + '{}], "prompt": "Once"}').encode()),
        "an unknown field": (text, {"prompt": "Once", "metadata": {"x": list(range(130_000))}, **some}),
    }


def encoded(body: Any) -> bytes:
    """Return a body as it is sent."""
    return json.dumps(body, ensure_ascii=False).encode()


def _format(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def _grammar(rules: int) -> str:
    lines = [f'rule{number} ::= "word{number}" | "other{number}" rule{number + 1}' for number in range(rules)]
    return "\n".join(["root ::= rule0", *lines, f'rule{rules} ::= "end"'])


@dataclass(frozen=True, kw_only=True)
class RequestOutcome:
    """One request under one budget. Sizes are in bytes.

    Members:
        request, budget: name of the request, and the budget.
        status: status of the answer; 0 if the connection broke.
        charged: ``peak_bytes`` of the server afterwards.
        resident: growth of VmHWM over the process without the model.
        fault: the rule that is broken, with figures; empty if none is.
    """

    request: str
    budget: int
    status: int
    charged: int
    resident: int
    fault: str


class _Server(ServerProcess):
    def __init__(self, budget: int) -> None:
        command = [sys.executable, "-m", "edgedec", "serve", "-m", "demo", "--memory-budget", str(budget)]
        super().__init__("edgedec", [*command, "--port", "{port}", "--no-log-requests"])
        peak, now = self.figures()
        self.without = self.status("VmRSS") - now
        self.most = max(peak, now)

    def status(self, key: str) -> int:
        lines = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(re.search(rf"{key}:\s+(\d+)", lines)[1]) << 10  # type: ignore[index]

    def forget_peak(self) -> None:
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")

    def figures(self) -> tuple[int, int]:
        """Return ``peak_bytes`` and the bytes that are charged now."""
        meter = json.loads(self.ask("GET", "/memory", None)[1])["meter"]
        return meter["peak_bytes"], meter["measured_bytes"]

    def ask(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=300)
        data = body if isinstance(body, bytes) or body is None else encoded(body)
        try:
            connection.request(method, path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        except OSError as error:
            return 0, str(error).encode()
        finally:
            connection.close()


def _fault(status: int, answer: bytes, charged: int, resident: int, budget: int) -> str:
    if charged > budget:
        return f"peak_bytes is {(charged - budget) / _MIB:.2f} MiB above the budget"
    if resident > budget:
        return f"the process is {(resident - budget) / _MIB:.2f} MiB above the budget"
    if status in (413, 429) and not _FIGURES.search(answer.decode(errors="replace")):
        return f"{status} without figures: {answer[:200].decode(errors='replace')}"
    if status not in (200, 400, 413, 429):
        return f"status {status}: {answer[:200].decode(errors='replace')}"
    return ""


def outcomes(budget: int, names: list[str]) -> Iterator[RequestOutcome]:
    """Yield the outcome of each request under one budget."""
    every = requests()
    with _Server(budget) as server:
        for name in names:
            server.forget_peak()
            for _ in range(2):
                status, answer = server.ask("POST", *every[name])
            resident = server.status("VmHWM") - server.without
            charged, _ = server.figures()
            fault = _fault(status, answer, charged, resident, budget)
            yield RequestOutcome(
                request=name, budget=budget, status=status, charged=charged, resident=resident, fault=fault
            )


def _row(mine: list[RequestOutcome]) -> tuple[str, ...]:
    counts = Counter(one.status for one in mine)
    return (
        mine[0].request,
        ", ".join(f"{count} of {status}" for status, count in sorted(counts.items())),
        f"{max(one.charged / one.budget for one in mine):.2f}",
        f"{max(one.resident / one.budget for one in mine):.2f}",
        f"{max(one.resident for one in mine) / _MIB:.1f}",
        str(sum(bool(one.fault) for one in mine)),
    )


def main() -> int:
    """Run the sweep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budgets", type=int, default=40)
    parser.add_argument("--from", dest="least", default="28MiB")
    parser.add_argument("--to", dest="most", default="512MiB")
    parser.add_argument("--only", nargs="+", choices=list(requests()), metavar="NAME")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    least, most = parse_bytes(args.least), parse_bytes(args.most)
    steps = max(1, args.budgets - 1)
    budgets = [round(least * (most / least) ** (number / steps)) for number in range(args.budgets)]
    found: list[RequestOutcome] = []
    for budget in budgets:
        note(f"{budget / _MIB:.1f} MiB")
        found += outcomes(budget, args.only or list(requests()))
    if args.json:
        print_json({"outcomes": [asdict(one) for one in found]})
    else:
        names = args.only or list(requests())
        header = ("request", "answers", "peak / budget", "process / budget", "process MiB", "faults")
        print_table(
            [header, *(_row([one for one in found if one.request == name]) for name in names)], right=(2, 3, 4, 5)
        )
        for one in found:
            if one.fault:
                note(f"{one.request}, {one.budget / _MIB:.1f} MiB: {one.fault}")
    return int(any(one.fault for one in found))


if __name__ == "__main__":
    sys.exit(main())
