"""The JavaScript runtime with Dawn in Node.js, without a browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.web.support.counting_site import STEP, served, write_counting_site
from tests.web.support.dawn import find_dawn, run_model

pytestmark = pytest.mark.thorough


def test_a_program_runs_in_passes(tmp_path: Path) -> None:
    find_dawn()
    write_counting_site(tmp_path)
    prompt = list(range(100, 170))
    with served(tmp_path) as address:
        answer = run_model(
            tmp_path,
            f"{address}/",
            "const { tokens, reason, text } = await session.generate(value.given, { mostTokens: 5 });"
            "return { tokens, reason, isText: text.length > 0, cached: session.cached.length };",
            prompt,
        )
    tokens = [169 + STEP * (at + 1) for at in range(5)]
    assert answer == {"tokens": tokens, "reason": "limit", "isText": True, "cached": 74}
