"""A server in a thread of the test's process, on a free port of this machine."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn

from edgedec.runtime.server.app import create_app
from edgedec.runtime.server.gate import Gate
from edgedec.runtime.server.listener import http_server
from edgedec.runtime.server.request_log import RequestLog
from edgedec.runtime.server.service import ModelService
from edgedec.runtime.server.settings import ServerSettings
from edgedec.runtime.server.sockets import listen
from edgedec.runtime.session.session import Session


class Served:
    """A running server.

    Members:
        port: its port on 127.0.0.1.
        service, gate: its parts.
        client: an HTTP client for it.
    """

    def __init__(self, port: int, service: ModelService, gate: Gate, server: uvicorn.Server) -> None:
        self.port, self.service, self.gate, self._server = port, service, gate, server
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60.0, trust_env=False)

    @property
    def connections(self) -> int:
        """Number of open connections, among them those that ``client`` keeps."""
        return len(self._server.server_state.connections)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.client.post(path, json=body)

    def chat(self, content: str = "hello", **body: Any) -> httpx.Response:
        return self.post("/v1/chat/completions", messages=[{"role": "user", "content": content}], **body)

    def complete(self, prompt: object = "Once upon a time", **body: Any) -> httpx.Response:
        return self.post("/v1/completions", prompt=prompt, **body)

    def events(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """Return the chunks of a stream, which must end with ``[DONE]``."""
        response = self.post(path, stream=True, **body)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        events = [line for line in response.content.decode().split("\n\n") if not line.startswith(":")]
        assert events[-2:] == ["data: [DONE]", ""]
        return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


@contextmanager
def serving(
    open_session: Callable[[], Session],
    *,
    queue_limit: int = 64,
    idle_unload_s: float = 0.0,
    await_load: bool = True,
    chat_template: str | None = None,
    log: RequestLog | None = None,
    **settings: Any,
) -> Iterator[Served]:
    """Run a server for the time of the block.

    Parameters:
        log: gets a line for each request.
        settings: members of ``ServerSettings``.
    """
    service = ModelService(
        open_session, queue_limit=queue_limit, idle_unload_s=idle_unload_s, chat_template=chat_template
    )
    gate = create_app(service, ServerSettings(**{"model_name": "a model", **settings}), log)
    sock = listen("127.0.0.1", 0)
    server = http_server(gate)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[sock])), daemon=True)
    service.start()
    thread.start()
    if await_load:
        service.loaded.result(60)
    served = Served(sock.getsockname()[1], service, gate, server)
    try:
        yield served
    finally:
        served.client.close()
        service.close()
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the server did not end"
