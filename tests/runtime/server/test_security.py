"""Test what strangers may not do: the attacks, and that the same requests without them succeed."""

from __future__ import annotations

import http.client
import json
import logging
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from edgedec.errors import UsageError
from edgedec.runtime.server.errors import ApiError
from edgedec.runtime.server.json_body import DEPTH_LIMIT, parse_json, structure
from edgedec.runtime.server.security import RequestRules
from edgedec.runtime.server.settings import ServerSettings
from tests.runtime.server.support.fake_session import ScriptedSession
from tests.runtime.server.support.serving import Served, serving

KEY, SECOND = "correct-horse-battery", "staple-5"
JSON = {"content-type": "application/json"}
OWN = {"host": "127.0.0.1:8080"}


def status(settings: ServerSettings, method: str, headers: Mapping[str, str], path: str = "/v1/models") -> int:
    """Return the status that the rules answer with; 0 if they let the request through."""
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    try:
        RequestRules(settings).check(method, path, Headers(raw=raw))
    except ApiError as error:
        return error.status_code
    return 0


def local(**members: Any) -> ServerSettings:
    return ServerSettings(model_name="m", **members)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1:8080", 0),
        ("127.0.0.1", 0),
        ("localhost:8080", 0),
        ("LocalHost", 0),
        ("[::1]:8080", 0),
        ("127.8.9.1:1", 0),
        ("box.lan:8080", 0),
        ("evil.example", 403),
        ("evil.example:8080", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("127.0.0.1:evil", 403),
        ("0.0.0.0:8080", 403),
        ("192.168.1.5:8080", 403),
        ("[::ffff:192.168.1.5]", 403),
        ("evil.example@127.0.0.1", 403),
        ("", 403),
    ],
)
def test_a_host_that_is_not_this_server_is_refused(host: str, expected: int) -> None:
    assert status(local(allowed_hosts=("box.lan",)), "GET", {"host": host}) == expected


def test_an_open_server_takes_any_address_and_no_name() -> None:
    settings = local(host="0.0.0.0", api_keys=(KEY,))
    key = {"authorization": f"Bearer {KEY}"}
    assert status(settings, "GET", {"host": "192.168.1.5:8080", **key}) == 0
    assert status(settings, "GET", {"host": "evil.example", **key}) == 403


def test_two_hosts_or_none_are_refused() -> None:
    for raw in ([], [(b"host", b"localhost"), (b"host", b"evil.example")]):
        with pytest.raises(ApiError, match="Host headers"):
            RequestRules(local()).check("GET", "/v1/models", Headers(raw=raw))


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, 0),
        ({"origin": "http://127.0.0.1:8080"}, 0),  # the server's own page
        ({"origin": "https://friend.example"}, 0),
        ({"origin": "http://friend.example"}, 403),
        ({"origin": "https://friend.example.evil"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": "http://localhost:8080"}, 403),  # another origin than the one that was asked
        ({"origin": "null"}, 403),
        ({"origin": ""}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 0),  # a link to the server's page
        ({"sec-fetch-site": "same-origin"}, 0),
    ],
)
def test_pages_of_other_sites_are_refused(headers: dict[str, str], expected: int) -> None:
    settings = local(cors_origins=("https://friend.example",))
    assert status(settings, "GET", {**OWN, **headers}) == expected
    posted = 403 if headers.get("sec-fetch-mode") == "navigate" else expected
    assert status(settings, "POST", {**OWN, **JSON, **headers}) == posted


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://localhost:3000", 0),
        ("http://localhost", 0),
        ("https://127.0.0.1:8443", 0),
        ("http://[::1]:5173", 0),
        ("http://localhost.evil.example", 403),
        ("http://notlocalhost", 403),
        ("http://evil.example", 403),
        ("http://localhost@evil.example", 403),
        ("http://evil.example@localhost", 403),
        ("http://localhost/", 403),
        ("http://localhost:3000#evil", 403),
        ("file://localhost", 403),
        ("null", 403),
        ("localhost", 403),
        ("http://[::1", 403),
        ("http://10.0.0.1", 403),
    ],
)
def test_pages_of_this_machine_can_be_allowed(origin: str, expected: int) -> None:
    settings = local(cors_origins=("localhost",))
    assert status(settings, "POST", {**OWN, **JSON, "origin": origin}) == expected
    assert RequestRules(settings).allows_origin(origin) == (not expected)


def test_each_address_is_a_name_of_the_server() -> None:
    settings = local(host="127.0.0.1,::1,box.lan", api_keys=(KEY,))
    key = {"authorization": f"Bearer {KEY}"}
    for host, expected in (("[::1]:8080", 0), ("127.0.0.1", 0), ("box.lan:8080", 0), ("evil.example", 403)):
        assert status(settings, "GET", {"host": host, **key}) == expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"authorization": f"Bearer {KEY}"}, 0),
        ({"authorization": f"bearer {SECOND}"}, 0),
        ({"x-api-key": SECOND}, 0),
        ({}, 401),
        ({"authorization": "Bearer "}, 401),
        ({"authorization": f"Bearer {KEY}x"}, 401),
        ({"authorization": f"Bearer {KEY[:-1]}"}, 401),
        ({"authorization": f"Basic {KEY}"}, 401),
        ({"authorization": KEY}, 401),
        ({"x-api-key": ""}, 401),
        ({"x-api-key": "\xff\xfe"}, 401),
    ],
)
def test_a_key_is_needed(headers: dict[str, str], expected: int) -> None:
    settings = local(api_keys=(KEY, SECOND))
    assert status(settings, "GET", {**OWN, **headers}) == expected
    assert status(settings, "GET", OWN, path="/health") == 0


def test_every_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return left == right

    monkeypatch.setattr("edgedec.runtime.server.security.hmac.compare_digest", compare)
    assert status(local(api_keys=(KEY, SECOND)), "GET", {**OWN, "x-api-key": KEY}) == 0
    assert len(compared) == 2, "the second key is compared although the first one is right"
    assert {len(value) for pair in compared for value in pair} == {32}, "digests, whose lengths tell nothing"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"content-type": "application/json"}, 0),
        ({"content-type": "application/JSON; charset=UTF-8"}, 0),
        ({"content-type": 'application/json; charset="utf-8"'}, 0),
        ({}, 415),
        ({"content-type": "text/plain"}, 415),  # the three forms that a page may send without asking
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": "multipart/form-data; boundary=application/json"}, 415),
        ({"content-type": "text/plain; application/json"}, 415),
        ({"content-type": "application/json; charset=utf-16"}, 415),
        ({"content-type": "application/json", "content-encoding": "gzip"}, 415),
        ({"content-type": "application/json", "content-length": "1048577"}, 413),
        ({"content-type": "application/json", "content-length": "9" * 5000}, 413),
        ({"content-type": "application/json", "content-length": "-1"}, 400),
    ],
)
def test_the_form_of_a_body_is_checked(headers: dict[str, str], expected: int) -> None:
    assert status(local(), "POST", {**OWN, **headers}) == expected


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"host": "0.0.0.0"}, "--host 0.0.0.0 can be reached from other machines, and no API key is set"),
        ({"host": "::"}, "can be reached from other machines"),
        ({"host": "::ffff:10.0.0.1"}, "can be reached from other machines"),
        ({"host": "192.168.1.5"}, "can be reached from other machines"),
        ({"host": "my-machine"}, "can be reached from other machines"),
        ({"host": ""}, "--host must be an address"),
        ({"host": "127.0.0.1,"}, "--host must be an address"),
        ({"host": "127.0.0.1,0.0.0.0"}, "can be reached from other machines"),
        ({"cors_origins": ("localhost:3000",)}, "--cors-origin must be an origin"),
        ({"cors_origins": ("http://user@localhost",)}, "--cors-origin must be an origin"),
        ({"cors_origins": ("*",)}, "lets every web page use the server"),
        ({"cors_origins": ("example.org",)}, "--cors-origin must be an origin"),
        ({"cors_origins": ("https://example.org/",)}, "--cors-origin must be an origin"),
        ({"cors_origins": ("null",)}, "--cors-origin must be an origin"),
        ({"cors_origins": ("http://[::1",)}, "--cors-origin must be an origin"),
        ({"allowed_hosts": ("*",)}, "--allowed-host must be a host name"),
        ({"allowed_hosts": ("box.lan:8080",)}, "--allowed-host must be a host name"),
        ({"api_keys": ("",)}, "an API key must be a word"),
        ({"api_keys": ("two words",)}, "an API key must be a word"),
        ({"api_keys": ("schlüssel",)}, "an API key must be a word"),
        ({"body_bytes": 10}, "--max-body must be at least"),
    ],
)
def test_settings_that_would_open_the_server_are_refused(members: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        local(**members)
    assert "schlüssel" not in str(refused.value)
    assert "two words" not in str(refused.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "::1", "::ffff:127.0.0.1", "127.0.0.1, ::1"])
def test_a_server_of_this_machine_alone_needs_no_key(host: str) -> None:
    assert local(host=host).api_keys == ()


# Bodies.


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"[" * (DEPTH_LIMIT + 1), "nests 65 arrays"),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, "nests 5000 arrays"),
        (b"{", "not JSON at character 1"),
        (b"", "not JSON at character 0"),
        (b"\xff", "not UTF-8 at byte 0"),
        ('"a"'.encode("utf-16"), "not UTF-8 at byte 0"),
        (b'{"a":NaN}', "NaN is not JSON"),
        (b"[-Infinity]", "-Infinity is not JSON"),
        (b'"\\ud800"', "lone surrogate"),
        (b'{"\\udfff": 1}', "lone surrogate"),
        (b"1" * 5000, "a number that is not accepted"),
    ],
)
def test_bodies_that_are_not_json_are_refused(body: bytes, message: str) -> None:
    with pytest.raises(ApiError, match=message) as refused:
        parse_json(body)
    assert refused.value.status_code == 400


def test_brackets_in_strings_do_not_count() -> None:
    assert structure(json.dumps({"a": ["[[[[", '"{{{{', "\\", "\\\\", '\\"[[']}).encode())[0] == 2
    assert structure(b'"\\\\"[[[')[0] == 3
    assert structure(b'"\\\\\\"[[[')[0] == 0
    assert structure(b'"' + b'\\"' * 100_000)[0] == 0


trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text('a[]{}"\\é'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('b{[\\"', max_size=4), inner, max_size=4),
    max_leaves=20,
)


def depth(tree: object) -> int:
    children = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else None
    return 0 if children is None else 1 + max(map(depth, children), default=0)


@given(trees, st.booleans())
def test_nesting_is_that_of_the_value(tree: object, ascii_only: bool) -> None:
    body = json.dumps(tree, ensure_ascii=ascii_only).encode()
    assert structure(body)[0] == depth(tree)
    assert parse_json(body) == tree


# A running server.


@pytest.fixture(scope="module")
def locked() -> Iterator[Served]:
    """Return a server with keys, limits and a page that may use it."""
    with serving(
        lambda: ScriptedSession().real,
        api_keys=(KEY, SECOND),
        cors_origins=("https://friend.example",),
        body_bytes=4096,
        body_seconds=0.1,
    ) as server:
        server.client.headers["Authorization"] = f"Bearer {KEY}"
        yield server


def test_a_right_request_is_answered(locked: Served) -> None:
    assert locked.chat(max_tokens=1).status_code == 200


def test_errors_have_openai_s_shape(locked: Served) -> None:
    response = locked.client.get("/v1/models", headers={"Authorization": "Bearer wrong"})
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")


def test_a_rebound_name_is_refused(locked: Served) -> None:
    response = locked.client.get("/health", headers={"Host": "evil.example"})
    assert (response.status_code, response.json()["error"]["code"]) == (403, "host_not_allowed")


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_beyond_the_limit_is_refused(locked: Served, declared: bool) -> None:
    body = json.dumps({"prompt": "x" * 5000}).encode()
    content = body if declared else iter([body[:4000], body[4000:]])
    response = locked.client.post("/v1/completions", content=content, headers=JSON)
    assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ("Content-Type: text/plain\r\nX-Api-Key: KEY", b"415"),
        ("Content-Type: application/json", b"401"),
        ("Content-Type: application/json\r\nX-Api-Key: KEY", b"413"),
    ],
)
def test_a_client_that_sends_all_before_it_reads_sees_the_refusal(locked: Served, headers: str, status: bytes) -> None:
    body = b"x" * (3 << 20)  # more than the buffers of a connection hold
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{headers.replace('KEY', KEY)}\r\n"
    with socket.create_connection(("127.0.0.1", locked.port), timeout=10) as sock:
        sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = b"".join(iter(lambda: sock.recv(4096), b""))
    assert answer.split()[1] == status


@pytest.mark.thorough
def test_a_body_that_does_not_arrive_is_given_up(locked: Served) -> None:
    with socket.create_connection(("127.0.0.1", locked.port), timeout=10) as sock:
        sock.sendall(
            f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: {KEY}\r\n"
            "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{".encode()
        )
        answer = b"".join(iter(lambda: sock.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_a_websocket_is_not_accepted(locked: Served) -> None:
    headers = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Key": "x", "Sec-WebSocket-Version": "13"}
    assert locked.client.get("/v1/chat/completions", headers=headers).status_code >= 400


def test_without_cors_no_header_lets_a_page_read(locked: Served) -> None:
    response = locked.client.get("/v1/models")
    assert response.status_code == 200
    assert not [name for name in response.headers if name.startswith("access-control")]
    assert response.headers["x-content-type-options"] == "nosniff"


def test_a_page_that_is_allowed_may_ask_and_read(locked: Served) -> None:
    origin = {"Origin": "https://friend.example"}
    asking = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    anonymous = http.client.HTTPConnection("127.0.0.1", locked.port, timeout=10)
    anonymous.request("OPTIONS", "/v1/chat/completions", headers=origin | asking)
    answer = anonymous.getresponse()
    assert (answer.status, answer.read()) == (200, b"")
    assert answer.headers["Access-Control-Allow-Origin"] == origin["Origin"]
    assert "Authorization" in answer.headers["Access-Control-Allow-Headers"]
    assert answer.headers["Access-Control-Allow-Credentials"] is None
    anonymous.close()
    response = locked.client.get("/v1/models", headers=origin)
    assert response.headers["access-control-allow-origin"] == origin["Origin"]
    assert "Origin" in response.headers["vary"]


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "https://friend.example.evil"])
def test_a_page_that_is_not_allowed_may_not_ask(locked: Served, origin: str) -> None:
    asking = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    response = locked.client.options("/v1/chat/completions", headers=asking)
    assert response.status_code == 403
    assert "access-control-allow-origin" not in response.headers


def test_names_of_headers_have_their_usual_spelling(locked: Served) -> None:
    sent = http.client.HTTPConnection("127.0.0.1", locked.port, timeout=10)
    sent.request("GET", "/metrics", headers={"Authorization": f"Bearer {KEY}", "Connection": "close"})
    names = [name for name, _ in sent.getresponse().getheaders()]
    sent.close()
    assert {"Content-Type", "Content-Length", "Process-Start-Time-Unix", "X-Content-Type-Options"} <= set(names)
    assert len({name.lower() for name in names}) == len(names)


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith(("httpx", "httpcore")):  # the test's own client
            self.messages.append(record.getMessage())


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """Return the messages of everything that is logged as with ``-vv``; caplog also hears loggers that are switched off."""
    root, kept = logging.getLogger(), _Kept()
    level = root.level
    root.addHandler(kept)
    root.setLevel(logging.DEBUG)
    yield kept.messages
    root.removeHandler(kept)
    root.setLevel(level)


def test_a_key_is_never_logged(locked: Served, logged: list[str]) -> None:
    locked.chat(max_tokens=1)
    locked.client.get(f"/v1/models?api_key={KEY}", headers={"X-Api-Key": f"{KEY}-wrong"})
    locked.client.get("/v1/models", headers={"Authorization": f"Bearer {SECOND}-wrong"})
    locked.client.post("/v1/completions", json={"prompt": 5, "api_key": KEY})
    locked.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1, "priority": KEY})
    assert any("ignored in a request: priority" in message for message in logged)
    assert not [message for message in logged if KEY in message or SECOND in message]
