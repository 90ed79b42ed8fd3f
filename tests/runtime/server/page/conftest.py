"""Provide the page for chats in a browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edgedec import demo
from edgedec.bundle.embedded import ABOUT, EXAMPLES
from edgedec.runtime.decoders import autoregressive
from edgedec.runtime.planning.speculation import SpecConfig
from edgedec.runtime.session.session import Session
from tests.runtime.server.support.chat_page import ChatPage
from tests.runtime.server.support.serving import Served, serving
from tests.runtime.support.bench_exactness import Insistent
from tests.support.chromium import Page, chromium, find_chromium


@pytest.fixture(scope="package")
def speculating() -> Iterator[Served]:
    """Return a server with the embedded model and a drafter that is asked whether it pays or not."""
    spec = SpecConfig(drafter="ngram")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(autoregressive, "Adaptive", Insistent)
        with serving(
            lambda: Session.open(demo.bundle_path(), threads=1, ctx_size=1024, spec=spec),
            about=ABOUT["demo"],
            examples=EXAMPLES,
        ) as server:
            yield server


@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """Return a browser that all tests use, because its start takes longer than most of them."""
    with chromium(find_chromium(), tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(speculating: Served, browser: Page) -> ChatPage:
    """Return the page in a browser that knows no conversation yet."""
    return ChatPage.fresh(browser, speculating.port)
