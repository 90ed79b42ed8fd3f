"""The embedded model in JavaScript writes the tokens that it writes on the CPU: with Dawn in Node.js, and in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgedec import demo
from edgedec.bundle import Bundle
from edgedec.quantize.exporters.web.export import export_web
from edgedec.runtime.conversation import Conversation
from edgedec.runtime.sampling import SamplingConfig
from edgedec.runtime.session import Session
from tests.support.chromium import Page, chromium, find_chromium
from tests.web.support.counting_site import served
from tests.web.support.dawn import find_dawn, run_model

pytestmark = pytest.mark.thorough

CONTEXT = 128
GREEDY = SamplingConfig(temperature=0)
PROMPTS = (
    ("Once upon a time", 24),
    ("Once upon a time, there was a cat whose name was Tom. " * 5, 8),  # several passes, the last one not full
    ("Once upon a time, there was a cat whose name was Tom. It liked", 12),  # its beginning is in the cache
)
QUESTIONS = ("What is the opposite of hot?", "Tell me a story about a cat.")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the embedded model's site."""
    folder = tmp_path_factory.mktemp("demo") / "site"
    counts = export_web(Bundle.open(demo.bundle_path()), folder, name="demo", ctx_size=CONTEXT)
    assert counts["pieces"] == 1
    return folder


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session.open(demo.bundle_path(), threads=1, ctx_size=CONTEXT) as opened:
        yield opened


def expected(session: Session, text: str, most: int) -> dict[str, Any]:
    answer = session.generate(text, n_predict=most, sampling=GREEDY)
    return {"tokens": answer.tokens, "text": answer.text, "reason": answer.stop_reason}


def test_tokens_are_those_of_the_cpu(site: Path, session: Session) -> None:
    find_dawn()
    prompts = [*PROMPTS, ("Once upon a time", -1)]  # the last one writes until the context is full, or to its end
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


def test_a_chat_in_a_browser_is_that_of_the_cpu(site: Path, session: Session, tmp_path: Path) -> None:
    with served(site) as address, chromium(find_chromium(), tmp_path, webgpu=True) as page:
        page.open(f"{address}/")
        page.wait("!document.getElementById('load').disabled")
        page.run("document.getElementById('load').click()")
        page.wait("globalThis.edgedec && !document.getElementById('chat').hidden", seconds=120)
        page.run("document.getElementById('most').value = '16'")
        for count, question in enumerate(QUESTIONS, start=1):
            ask(page, question)
            page.wait(f"document.querySelectorAll('.figures').length === {count}", seconds=120)
        texts = page.run("[...document.querySelectorAll('article.assistant .text')].map((one) => one.textContent)")
        assert page.complaints == []
    conversation = Conversation(session)
    for question, text in zip(QUESTIONS, texts, strict=True):
        ids, _ = conversation.ask(question)
        answer = session.generate(ids, n_predict=16, sampling=GREEDY)
        conversation.answered(question, answer.text, used=len(ids) + len(answer.tokens))
        assert text == answer.text


def ask(page: Page, text: str) -> None:
    page.run("document.getElementById('message').focus()")
    page.type(text)
    page.key("Enter", text="\r")
