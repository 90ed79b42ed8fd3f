"""Attack a server of this machine until the process is ended; ``attacks.py`` measures beside it what other clients wait.

    python -m benchmarks.server.attackers NAME PORT KEY

Each attack has several tasks that begin anew whenever the server has ended what they do. Every two tenths of a second the
process prints a line of JSON: how many requests had which status (``lost``: the connection ended without one).
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ATTACKS", "Attacker"]

_HOST = "127.0.0.1"
_REPORT_S, _PAUSE_S = 0.2, 0.05  # seconds between reports, and after a request whose connection was refused
_STORY = "Once upon a time there was a little cat who liked to play in the big green garden with a red ball. "


@dataclass
class Attacker:
    """The means of an attack: the address of the server, a key that the server knows, and counts of the answers."""

    port: int
    key: str
    statuses: Counter[str] = field(default_factory=Counter)
    draw: random.Random = field(default_factory=lambda: random.Random(0))

    def head(self, path: str, length: int, *, key: bool = True) -> bytes:
        """Return the head of a POST."""
        lines = [
            f"POST {path} HTTP/1.1",
            f"Host: {_HOST}",
            "Content-Type: application/json",
            f"Content-Length: {length}",
        ]
        lines += [f"Authorization: Bearer {self.key}"] if key else []
        return "\r\n".join([*lines, "Connection: close", "", ""]).encode()

    async def send(self, *parts: bytes, pause_s: float = 0.0) -> None:
        """Send the parts with pauses, read until the server closes the connection, and count the status."""
        writer = None
        status = "lost"
        try:
            reader, writer = await asyncio.open_connection(_HOST, self.port)
            answer = asyncio.create_task(reader.readline())
            for part in parts:
                writer.write(part)
                await writer.drain()
                if pause_s:
                    await asyncio.wait([answer], timeout=pause_s)
                if answer.done():
                    break
            words = (await answer).split()
            status = words[1].decode() if len(words) > 1 else "lost"
            while await reader.read(1 << 16):
                pass
        except OSError:
            await asyncio.sleep(_PAUSE_S)
        finally:
            self.statuses[status] += 1
            if writer is not None:
                writer.close()

    async def post(self, path: str, **body: Any) -> None:
        """Send a request with the key."""
        content = json.dumps(body).encode()
        await self.send(self.head(path, len(content)) + content)

    def name(self) -> str:
        """Return a name that no earlier request had, so that no cache of the server helps it."""
        return f"n{self.draw.randrange(10**9)}"


async def without_key(attacker: Attacker) -> None:
    """Announce a body without a key, and send none."""
    await attacker.send(attacker.head("/v1/completions", 1000, key=False))


async def refused(attacker: Attacker) -> None:
    """Send whole requests without a key."""
    await attacker.send(attacker.head("/v1/completions", 1000, key=False) + b" " * 1000)


async def silent_bodies(attacker: Attacker) -> None:
    """Announce a body of the largest size, and send none."""
    await attacker.send(attacker.head("/v1/completions", 1 << 20))


async def slow_bodies(attacker: Attacker) -> None:
    """Send a byte of a body twice a second."""
    await attacker.send(attacker.head("/v1/completions", 100_000), *[b" "] * 1000, pause_s=0.5)


async def connections(attacker: Attacker) -> None:
    """Open a connection and say nothing."""
    await attacker.send(b"")


async def schema(attacker: Attacker) -> None:
    """Ask for an answer in a large schema of which much cannot be enforced."""
    name = attacker.name()
    one_of = {"oneOf": [{"type": "object", "properties": {f"k{at}": {"type": "string"}}} for at in range(8)]}
    wide: dict[str, Any] = {"properties": {f"{name}{at}": {} for at in range(10_000)}}
    wrong = {"properties": {f"{name}{at}": one_of for at in range(220)}}
    chosen = attacker.draw.choice([wide, wrong])
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object", **chosen}}}
    await attacker.post("/v1/chat/completions", messages=_messages("x"), response_format=form, max_tokens=20)


async def optional(attacker: Attacker) -> None:
    """Ask for an answer in a schema with as many optional properties as are allowed, of another name each time."""
    name = attacker.name()
    properties = {f"{name}{at}": {"type": "integer"} for at in range(1000)}
    await attacker.post(
        "/v1/completions", prompt="x", max_tokens=20, json_schema={"type": "object", "properties": properties}
    )


async def enumeration(attacker: Attacker) -> None:
    """Ask for an answer that is one of thousands of values, or one in many levels of choices."""
    name = attacker.name()
    wide: dict[str, Any] = {"enum": [f"{name}{at}" for at in range(12_000)]}
    deep: dict[str, Any] = {"const": name}
    for at in range(28):
        deep = {
            "anyOf": [{"enum": [f"{name}{at}x{number}" for number in range(300)]}, {"type": "array", "items": deep}]
        }
    await attacker.post("/v1/completions", prompt="x", max_tokens=20, json_schema=attacker.draw.choice([wide, deep]))


async def grammar(attacker: Attacker) -> None:
    """Ask for an answer in a grammar that takes long to compile, or whose expressions are combined."""
    name = attacker.name()
    texts = [
        "root ::= " + " | ".join(f'"{name}{at}"' for at in range(9_000)),
        "start: X\nX: " + " & ".join(f"/(a|b)*a(a|b){{{at}}}/" for at in range(40)),
        "start: X\nX: " + " & ".join(f"/{name}(a|b)*a(a|b){{{60 + at}}}/" for at in range(7)),
        "start: " + " | ".join(f'"{name}{at}" /[a-z ]*{at}[a-z ]{{20}}x/' for at in range(3_000)),
    ]
    await attacker.post("/v1/completions", prompt="x", max_tokens=20, grammar=attacker.draw.choice(texts))


async def required_text(attacker: Attacker) -> None:
    """Ask for an answer that must be a text of two hundred thousand characters."""
    await attacker.post(
        "/v1/completions", prompt="x", max_tokens=100, grammar=f'start: "{attacker.name()}" /(xy){{100000}}/'
    )


async def long_prompts(attacker: Attacker) -> None:
    """Send prompts that nearly fill the context, of which no two begin alike."""
    await attacker.post("/v1/completions", prompt=f"{attacker.name()} " + _STORY * 28, max_tokens=4)


async def tokenize(attacker: Attacker) -> None:
    """Have a text of nearly a megabyte tokenized."""
    await attacker.post("/tokenize", content=_STORY * (1_000_000 // len(_STORY)), with_pieces=True)


async def logprobs(attacker: Attacker) -> None:
    """Ask for sixteen texts with the log-probabilities of twenty tokens at each place, those of a long prompt included."""
    prompt = f"{attacker.name()} " + _STORY * 15
    await attacker.post("/v1/completions", prompt=prompt, max_tokens=64, n=16, logprobs=20, echo=True)


def _messages(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


# name -> the attack, and the number of tasks that carry it out at the same time
ATTACKS: dict[str, tuple[Callable[[Attacker], Awaitable[None]], int]] = {
    "without-key": (without_key, 300),
    "refused": (refused, 16),
    "silent-bodies": (silent_bodies, 300),
    "slow-bodies": (slow_bodies, 300),
    "connections": (connections, 1200),
    "schema": (schema, 4),
    "optional": (optional, 4),
    "enumeration": (enumeration, 4),
    "grammar": (grammar, 4),
    "required-text": (required_text, 2),
    "long-prompts": (long_prompts, 4),
    "tokenize": (tokenize, 4),
    "logprobs": (logprobs, 4),
}


async def _attack(name: str, attacker: Attacker) -> None:
    attack, tasks = ATTACKS[name]

    async def again() -> None:
        while True:
            await attack(attacker)

    async def report() -> None:
        while True:
            print(json.dumps(attacker.statuses), flush=True)
            await asyncio.sleep(_REPORT_S)

    await asyncio.gather(report(), *(again() for _ in range(tasks)))


if __name__ == "__main__":
    asyncio.run(_attack(sys.argv[1], Attacker(int(sys.argv[2]), sys.argv[3])))
