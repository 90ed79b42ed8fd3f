"""Test a server on ``--device gpu``: the texts of several clients, and a device that is lost between two and in mid-text."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from edgedec import demo
from edgedec.runtime.kernels.sessions.operator import usable
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from tests.runtime.server.support.serving import Served, serving
from tests.support.gpu_here import need_gpu

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(usable() is None, reason="the kernels' library was not built (no C++ compiler)"),
]

PROMPTS = ("Once upon a time", "Once upon a time, there was a cat", "The moon")
GREEDY = SamplingConfig(temperature=0)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    need_gpu()
    with serving(lambda: Session.open(demo.bundle_path(), device="gpu", ctx_size=256, sequences=3)) as server:
        yield server


def lose_device_at(monkeypatch: pytest.MonkeyPatch, submission: int) -> None:
    """Destroy the device before one of the next submissions."""
    from edgedec.runtime.gpu.executor import Executor

    whole, seen = Executor.submit, list[int]()

    def submit(self: Executor, *arguments: Any) -> Any:
        seen.append(0)
        if len(seen) == submission:
            importlib.import_module("wgpu.backends.wgpu_native").lib.wgpuDeviceDestroy(self._device.raw._internal)
        return whole(self, *arguments)

    monkeypatch.setattr(Executor, "submit", submit)


def text(served: Served, prompt: str, tokens: int = 12) -> str:
    response = served.complete(prompt, max_tokens=tokens, temperature=0)
    assert response.status_code == 200, response.text
    written: str = response.json()["choices"][0]["text"]
    return written


def test_texts_are_those_of_the_cpu_before_and_after_a_loss(
    served: Served, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = {prompt: session.generate(prompt, n_predict=12, sampling=GREEDY).text for prompt in PROMPTS}
    with ThreadPoolExecutor(3) as clients:
        assert list(clients.map(lambda prompt: text(served, prompt), PROMPTS)) == list(right.values())
    with monkeypatch.context() as patch:
        lose_device_at(patch, 6)
        lost = served.complete(PROMPTS[0], max_tokens=12, temperature=0)
    assert lost.status_code == 500
    assert "was lost at" in lost.json()["error"]["message"]
    assert "send the text again" in lost.json()["error"]["message"]
    # Rows that were kept for their prefixes went with the device, and are computed again.
    assert {prompt: text(served, prompt) for prompt in PROMPTS} == right
