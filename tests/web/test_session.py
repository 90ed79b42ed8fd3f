"""The loop of the JavaScript runtime with an executor that only counts: passes, the kept cache, and how answers end."""

from __future__ import annotations

from typing import Any

import pytest

from tests.web.support.node import Node

pytestmark = pytest.mark.thorough

# The fake model continues n with n + 1. Its tokenizer writes each id as itself and a blank.
FAKE = """
const { Session } = await use("session");
const calls = [];
const executor = {
  program: { rows: 4 },
  async run(ids, past, results) {
    calls.push([[...ids], past, [...results]]);
    return results.map((row) => ids[row] + 1);
  },
  async finished() {},
};
const tokenizer = {
  decoder: null,
  library: { token_to_id: () => undefined },
  tokenOf: (id) => `${id}`,
  isSpecial: () => false,
  decode: (ids) => ids.map((id) => `${id} `).join(""),
};
const session = new Session(executor, tokenizer, null, { tokens: { eos: [9, 90] }, positions: 24 });
const answers = [];
for (const { prompt, mostTokens, stopAfter } of value) {
  const control = new AbortController();
  let pieces = 0;
  const answer = await session.generate(prompt, {
    mostTokens: mostTokens ?? Infinity,
    signal: control.signal,
    onPrompt: () => stopAfter === 0 && control.abort(),
    onText: () => (pieces += 1) === stopAfter && control.abort(),
  });
  answers.push({ text: answer.text, tokens: answer.tokens, reason: answer.reason, cached: answer.cachedTokens });
}
return { answers, calls };
"""


def run(node: Node, *prompts: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = node.run(FAKE, list(prompts))
    return result


def test_a_prompt_is_read_in_passes_and_an_end_token_ends_the_answer(node: Node) -> None:
    result = run(node, {"prompt": [1, 2, 3, 4, 5, 6]})
    assert result["answers"] == [{"text": "7 8 ", "tokens": [7, 8, 9], "reason": "eos", "cached": 0}]
    assert result["calls"] == [[[1, 2, 3, 4], 0, []], [[5, 6], 4, [1]], [[7], 6, [0]], [[8], 7, [0]]]


def test_what_the_next_prompt_begins_with_stays_in_the_cache(node: Node) -> None:
    turns = ({"prompt": [1, 2, 3, 4, 5, 6]}, {"prompt": [1, 2, 3, 4, 5, 6, 7, 8, 30]}, {"prompt": [1, 2, 60]})
    result = run(node, *({**turn, "mostTokens": 3} for turn in turns))
    assert [answer["cached"] for answer in result["answers"]] == [0, 8, 2]
    assert result["calls"][4:] == [
        [[30], 8, [0]],
        [[31], 9, [0]],
        [[32], 10, [0]],
        [[60], 2, [0]],
        [[61], 3, [0]],
        [[62], 4, [0]],
    ]


def test_a_prompt_that_is_cached_as_a_whole_runs_its_last_row_again(node: Node) -> None:
    result = run(node, {"prompt": [1, 2, 3], "mostTokens": 1}, {"prompt": [1, 2, 3], "mostTokens": 1})
    assert result["calls"] == [[[1, 2, 3], 0, [2]], [[3], 2, [0]]]


def test_an_answer_ends_at_the_limit_and_at_the_context(node: Node) -> None:
    result = run(node, {"prompt": [20, 21], "mostTokens": 2}, {"prompt": [20, 21]})
    limit, context = result["answers"]
    assert (limit["reason"], limit["tokens"]) == ("limit", [22, 23])
    assert (context["reason"], len(context["tokens"])) == ("context", 23)
    assert max(past + len(ids) for ids, past, _ in result["calls"]) == 24


def test_a_stop_keeps_the_text_so_far_and_the_cache(node: Node) -> None:
    result = run(
        node,
        {"prompt": [20, 21, 22, 23, 24], "stopAfter": 2},
        {"prompt": [20, 21, 22, 23, 24, 25, 26, 40], "stopAfter": 0},
    )
    assert result["answers"][0] == {"text": "25 26 ", "tokens": [25, 26], "reason": "interrupted", "cached": 0}
    assert result["answers"][1] == {"text": "", "tokens": [], "reason": "interrupted", "cached": 6}


@pytest.mark.parametrize(
    ("prompt", "words"), [([], "the prompt is empty"), ([1] * 24, "has 24 tokens, and the context holds 24")]
)
def test_prompts_that_cannot_run_are_refused(node: Node, prompt: list[int], words: str) -> None:
    script = f"try {{ {FAKE} }} catch (error) {{ return error.message; }}"
    assert words in node.run(script, [{"prompt": prompt}])
