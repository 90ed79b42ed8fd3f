"""Provide servers: one with the embedded model, and one whose answers a test controls."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edgedec import demo
from edgedec.runtime.session.session import Session
from tests.runtime.server.support.fake_session import ScriptedSession
from tests.runtime.server.support.serving import Served, serving


def open_demo() -> Session:
    return Session.open(demo.bundle_path(), threads=1, ctx_size=512, sequences=3)


@pytest.fixture(scope="package")
def session() -> Iterator[Session]:
    """Return the embedded model, to compare answers with."""
    with open_demo() as opened:
        yield opened


@pytest.fixture(scope="package")
def served() -> Iterator[Served]:
    """Return a server with the embedded model."""
    with serving(open_demo) as server:
        yield server


@pytest.fixture
def script() -> ScriptedSession:
    """Return the session of ``controlled``, whose answers wait for permits."""
    return ScriptedSession(steps=0)


@pytest.fixture
def controlled(script: ScriptedSession) -> Iterator[Served]:
    """Return a server whose answers go on as ``script`` allows."""
    with serving(lambda: script.real, queue_limit=2) as server:
        yield server


@pytest.fixture
def pinging(script: ScriptedSession) -> Iterator[Served]:
    """Return the same with frequent pings, so that a stream begins before its first token."""
    with serving(lambda: script.real, ping_seconds=0.02) as server:
        yield server
