"""Files that come damaged or not at all are named; plans that cannot run are refused."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from tests.web.support.node import Node

pytestmark = pytest.mark.thorough

CONTENT = "a piece of weights" * 10
FETCH = """
const { fetchFile } = await use("download");
const { status = 200, chunks, fails } = value.server;
let asked;
globalThis.fetch = async (url) => {
  asked = url.href;
  if (fails === "at once") throw new TypeError("no connection");
  const body = new ReadableStream({
    start(controller) {
      for (const chunk of chunks ?? []) controller.enqueue(new TextEncoder().encode(chunk));
      if (fails === "later") controller.error(new TypeError("reset"));
      else controller.close();
    },
  });
  return new Response(body, { status });
};
let counted = 0;
try {
  const bytes = await fetchFile("http://127.0.0.1/sub/", value.file, { onBytes: (count) => (counted += count) });
  return { text: new TextDecoder().decode(bytes), counted, asked };
} catch (error) {
  return { error: error.message };
}
"""


def fetch(node: Node, **server: Any) -> dict[str, Any]:
    file = {
        "name": "model/weights-003.bin",
        "bytes": len(CONTENT),
        "sha256": hashlib.sha256(CONTENT.encode()).hexdigest(),
    }
    result: dict[str, Any] = node.run(FETCH, {"file": file, "server": server})
    return result


def test_a_whole_file_is_asked_for_by_its_hash_returned_and_counted(node: Node) -> None:
    assert fetch(node, chunks=[CONTENT[:50], CONTENT[50:]]) == {
        "text": CONTENT,
        "counted": len(CONTENT),
        "asked": f"http://127.0.0.1/sub/model/weights-003.bin?sha256={hashlib.sha256(CONTENT.encode()).hexdigest()}",
    }


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ({"status": 404}, "model/weights-003.bin is missing (the server says 404)"),
        ({"chunks": [CONTENT[:50]]}, "model/weights-003.bin is damaged (50 of 180 bytes)"),
        ({"chunks": [CONTENT, "x"]}, "model/weights-003.bin is damaged (it has more than 180 bytes)"),
        ({"chunks": ["b" + CONTENT[1:]]}, "model/weights-003.bin is damaged (its SHA-256 is "),
        ({"fails": "at once"}, "model/weights-003.bin: the server does not answer (no connection)"),
        ({"chunks": [CONTENT[:50]], "fails": "later"}, "model/weights-003.bin: the connection ended after "),
    ],
)
def test_a_file_that_is_not_whole_is_named(node: Node, server: dict[str, Any], words: str) -> None:
    error = fetch(node, **server)["error"]
    assert words in error
    assert "again" in error


def test_the_plan_counts_what_is_fetched_and_held(node: Node) -> None:
    plan, refusals = node.run(PLAN, {"limits": {"maxBufferSize": 1 << 20}, "budgets": [None, 99, 60]})
    assert plan == {
        "downloadBytes": 10 + 30 + 5 + 100,
        "items": {"weights": 70, "cache": 20},
        "gpuBytes": 90,
        "requiredLimits": {"maxBufferSize": 64},
    }
    assert refusals[:2] == [[], []]
    assert "GPU memory, more than the budget" in refusals[2][0]


def test_a_gpu_with_smaller_limits_is_refused(node: Node) -> None:
    _, refusals = node.run(PLAN, {"limits": {"maxBufferSize": 63}, "budgets": [None]})
    assert refusals == [["the model needs maxBufferSize 64, and this GPU offers 63"]]


PLAN = """
const { makePlan, refusals } = await use("plan");
const site = {
  tokenizer: { bytes: 10 },
  chat_template: null,
  arithmetic: { bytes: 5 },
  programs: { a: { bytes: 20 }, b: { bytes: 30 } },
  weights: [{ bytes: 60 }, { bytes: 40 }],
  memory: { items: { weights: 70, cache: 20 }, limits: { maxBufferSize: 64 } },
};
const plan = makePlan(site);
return [plan, value.budgets.map((budget) => refusals(plan, value.limits, budget))];
"""
