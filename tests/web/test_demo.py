"""Models in JavaScript write the tokens that they write on the CPU: with Dawn in Node.js, and in a browser.

A software GPU takes seconds to compile the shaders, and 60 to 90 ms for a token of the embedded model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec import demo
from edgedec.bundle.bundle import Bundle
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.conversation import Conversation
from edgedec.runtime.session.session import Session
from edgedec.runtime.web.export import export_web
from tests.support.chromium import Page, chromium, find_chromium
from tests.web.support.counting_site import served
from tests.web.support.dawn import find_dawn, run_model
from tests.web.support.tiny_site import write_tiny_bundle

CONTEXT = 64
GREEDY = SamplingConfig(temperature=0)
PROMPTS = (
    ("Once upon a time", 12),
    ("Once upon a time, there was a cat whose name was Tom. " * 4, 4),  # several passes, the last one not full
    ("Once upon a time, there was a cat whose name was Tom. It liked", 6),  # its beginning is in the cache
)
TINY_PROMPTS = ([5, 9, 30], [*range(4, 40), 7, 7], [5, 9, 31])
STATE = "document.getElementById('state').textContent"
QUESTIONS = ("What is the opposite of hot?", "Tell me a story about a cat.")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the embedded model's site."""
    folder = tmp_path_factory.mktemp("demo") / "site"
    counts = export_web(Bundle.open(demo.bundle_path()), folder, name="demo", ctx_size=CONTEXT)
    assert counts["pieces"] == 1
    shorten_known_answer(folder)
    return folder


def shorten_known_answer(folder: Path) -> None:
    """Leave two tokens of the known answer, because some software GPUs take seconds for each."""
    content = json.loads((folder / "site.json").read_text("utf-8"))
    content["known_answer"]["tokens"] = content["known_answer"]["tokens"][:2]
    (folder / "site.json").write_text(json.dumps(content), "utf-8")


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session.open(demo.bundle_path(), threads=1, ctx_size=CONTEXT) as opened:
        yield opened


def expected(session: Session, text: str, most: int) -> dict[str, Any]:
    answer = session.generate(text, n_predict=most, sampling=GREEDY)
    return {"tokens": answer.tokens, "text": answer.text, "reason": answer.stop_reason}


@pytest.mark.thorough
def test_a_random_model_in_a_browser_writes_the_tokens_of_the_cpu(tmp_path: Path) -> None:
    export_web(write_tiny_bundle(tmp_path / "tiny"), tmp_path / "site", name="tiny", ctx_size=CONTEXT)
    shorten_known_answer(tmp_path / "site")
    with served(tmp_path / "site") as address, chromium(find_chromium(), tmp_path / "profile", webgpu=True) as page:
        open_and_load(page, address)
        assert page.run("edgedec.session.isExact"), "the known answer was written"
        answers = []
        for prompt in TINY_PROMPTS:
            call = f"edgedec.session.generate({prompt}, {{ mostTokens: 4 }})"
            page.run(f"globalThis.answer = null; {call}.then((one) => {{ answer = one; }}); null")
            page.wait("answer", seconds=120)
            answers.append(page.run("answer.tokens"))
        assert page.complaints == []
    with Session.open(tmp_path / "tiny", threads=1, ctx_size=CONTEXT) as session:
        right = [
            session.generate(np.array(prompt, np.int32), n_predict=4, sampling=GREEDY).tokens for prompt in TINY_PROMPTS
        ]
    assert answers == right
    assert len({tuple(tokens) for tokens in right}) == len(right)


@pytest.mark.nightly
def test_tokens_are_those_of_the_cpu(site: Path, session: Session) -> None:
    find_dawn()
    full = "Once upon a time, there was a cat whose name was Tom. " * 4
    prompts = [*PROMPTS, (full, -1)]  # the last one writes until the context is full
    with served(site) as address:
        answers = run_model(
            site,
            f"{address}/",
            """
            const answers = [];
            for (const [text, most] of value.given) {
              const ids = session.tokenizer.encode(text);
              const mostTokens = most < 0 ? Infinity : most;
              const { tokens, text: written, reason } = await session.generate(ids, { mostTokens });
              answers.push({ tokens, text: written, reason });
            }
            return answers;
            """,
            prompts,
        )
    assert answers == [expected(session, text, most) for text, most in prompts]
    assert answers[-1]["reason"] == "context"


@pytest.mark.nightly
def test_a_chat_in_a_browser_is_that_of_the_cpu(site: Path, session: Session, tmp_path: Path) -> None:
    with served(site) as address, chromium(find_chromium(), tmp_path, webgpu=True) as page:
        open_and_load(page, address)
        page.run("document.getElementById('most').value = '4'")
        for count, question in enumerate(QUESTIONS, start=1):
            ask(page, question)
            page.wait(f"document.querySelectorAll('.figures').length === {count}", seconds=400)
        texts = page.run("[...document.querySelectorAll('article.assistant .text')].map((one) => one.textContent)")
        assert page.run(STATE) == "", "the known answer was written"
        assert page.run("edgedec.session.isExact")
        assert page.complaints == []
    conversation = Conversation(session)
    for question, text in zip(QUESTIONS, texts, strict=True):
        ids, _ = conversation.ask(question)
        answer = session.generate(ids, n_predict=4, sampling=GREEDY)
        conversation.answered(question, answer.text, used=len(ids) + len(answer.tokens))
        assert text == answer.text


def open_and_load(page: Page, address: str) -> None:
    page.open(f"{address}/")
    page.wait("!document.getElementById('load').disabled")
    page.run("document.getElementById('load').click()")
    page.wait("globalThis.edgedec && !document.getElementById('chat').hidden", seconds=400)


def ask(page: Page, text: str) -> None:
    page.run("document.getElementById('message').focus()")
    page.type(text)
    page.key("Enter", text="\r")
