"""Test the command line of the server: its options, its refusals, and its end by signals."""

from __future__ import annotations

import gc
import http.client
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from edgedec.cli import console
from edgedec.cli._service import log_format_named, request_log
from edgedec.cli.run_options import RunOptions
from edgedec.errors import DeviceError
from edgedec.runtime.engine.spill import SpillFolder
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.server import listener, systemd
from edgedec.runtime.server.gate import Gate
from edgedec.runtime.server.memory import GRAMMAR_ROOM, server_items
from edgedec.runtime.server.service import ModelService
from edgedec.runtime.server.sockets import listen, listen_all
from edgedec.runtime.session.session_memory import SessionMemory
from edgedec.runtime.text.named_templates import named_template
from tests.edgedec.cli.conftest import Edgedec, Outcome

Started = list[tuple[Gate, ModelService, str]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """Return the servers that the command would have run, with the addresses of their sockets."""
    servers: Started = []

    def run_server(gate: Gate, service: ModelService, sock: socket.socket, **options: Any) -> None:
        servers.append((gate, service, sock.getsockname()[0]))

    monkeypatch.setattr(listener, "run_server", run_server)
    return servers


def test_defaults_are_closed(edgedec: Edgedec, started: Started) -> None:
    outcome = edgedec("serve", "-m", "some/story.edgedec", "--port", "0")
    assert outcome.code == 0, outcome.stderr
    ((gate, service, address),) = started
    assert (gate.settings.model_name, gate.settings.api_keys, gate.settings.cors_origins) == ("story", (), ())
    assert gate.settings.body_bytes == 1 << 20
    assert (service.queue_limit, service.idle_unload_s) == (64, 0)
    assert address == "127.0.0.1"


def test_options_reach_the_server(edgedec: Edgedec, started: Started, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("first-key\n\n  second-key \n")
    words = "--port 0 --host 127.0.0.1 --allowed-host box.lan --allowed-host box --cors-origin https://a.example"
    words += " --alias tale --queue 3 --max-body 2MiB --idle-unload 1.5"
    outcome = edgedec(
        "serve", "-m", "demo", *words.split(), "--api-key-file", keys, env={"EDGEDEC_SERVE_API_KEY": "third-key"}
    )
    assert outcome.code == 0, outcome.stderr
    ((gate, service, _),) = started
    settings = gate.settings
    assert settings.api_keys == ("third-key", "first-key", "second-key")
    assert (settings.allowed_hosts, settings.cors_origins) == (("box.lan", "box"), ("https://a.example",))
    assert (settings.model_name, settings.body_bytes) == ("tale", 2 << 20)
    assert (service.queue_limit, service.idle_unload_s) == (3, 1.5)


def test_defaults_of_requests_reach_the_server(edgedec: Edgedec, started: Started, tmp_path: Path) -> None:
    assert edgedec("serve", "-m", "demo", "--port", "0").code == 0
    words = "--temp 0.5 --top-k 3 --seed 7 -n 20 --repeat-penalty 1.1 --no-slots --no-metrics --no-ui"
    outcome = edgedec("serve", "-m", "demo", "--port", "0", *words.split())
    assert outcome.code == 0, outcome.stderr
    (plain, _, _), (gate, _, _) = started
    assert (plain.settings.sampling, plain.settings.n_predict) == (SamplingConfig(), -1)
    assert (plain.settings.shows_slots, plain.settings.shows_metrics, plain.settings.has_page) == (True, True, True)
    own = SamplingConfig(temperature=0.5, top_k=3, seed=7, repeat_penalty=1.1)
    assert (gate.settings.sampling, gate.settings.n_predict) == (own, 20)
    assert (gate.settings.shows_slots, gate.settings.shows_metrics, gate.settings.has_page) == (False, False, False)


def test_several_addresses_have_one_port() -> None:
    with suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        sockets = listen_all(["127.0.0.1", "::1"], 0)
        try:
            (_, first), (_, second, *_) = (sock.getsockname() for sock in sockets)
            assert first == second
            for address in ("127.0.0.1", "::1"):
                socket.create_connection((address, first), timeout=5).close()
            with pytest.raises(DeviceError, match="Address already in use"):
                listen_all(["127.0.0.2", "127.0.0.1"], first)
            listen("127.0.0.2", first).close()  # it was closed again
        finally:
            for sock in sockets:
                sock.close()


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("source", ["name", "text", "file"])
def test_a_chat_template_reaches_the_server(
    edgedec: Edgedec, started: Started, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str
) -> None:
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    (tmp_path / "chat.jinja").write_text(template)
    options = {
        "name": ["--chat-template", "llama3"],
        "text": ["--chat-template", template],
        "file": ["--chat-template-file", str(tmp_path / "chat.jinja")],
    }[source]
    made = list[Any]()
    monkeypatch.setattr(ModelService, "__init__", lambda service, *args, **options: made.append(options))
    monkeypatch.setattr("edgedec.runtime.server.app.create_app", lambda *args: None)
    outcome = edgedec("serve", "-m", "demo", "--port", "0", *options)
    assert outcome.code == 0, outcome.stderr
    assert made[0]["chat_template"] == (named_template("llama3") if source == "name" else template)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--chat-template", "chatlm"],
            "--chat-template: 'chatlm' is neither a Jinja template nor one of the names chatml",
        ),
        (["--chat-template", "{% for %}"], "--chat-template: the chat template does not parse"),
        (["--chat-template-file", "bad"], "--chat-template-file bad: the chat template does not parse at line 2"),
        (["--chat-template-file", "none"], "--chat-template-file none: there is no such file"),
        (["--chat-template-file", "empty"], "--chat-template-file empty: the file is empty"),
        (["--chat-template", "chatml", "--chat-template-file", "bad"], "give one of them"),
        (["--temp", "-1"], "--temp must be >= 0"),
        (["--top-p", "1.5"], "--top-p must be from 0 to 1"),
    ],
)
def test_wrong_defaults_are_refused_at_the_start(
    edgedec: Edgedec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad").write_text("text\n{% endfor %}")
    (tmp_path / "empty").write_text("")
    outcome = edgedec("serve", "-m", "demo", "--port", "0", *options)
    assert outcome.code == 2
    assert message in outcome.stderr


def test_rows_are_kept_on_the_disk_while_the_server_runs(
    edgedec: Edgedec, bundle: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folders, kept, frozen = list[Path](), list[object](), list[int]()
    monkeypatch.setattr(SessionMemory, "keep_on_disk", lambda session, disk: kept.append(disk))

    def run_server(gate: Gate, service: ModelService, sock: socket.socket, **options: Any) -> None:
        folders.extend(path for path in (tmp_path / "cache/edgedec/sequences").iterdir() if path.is_dir())
        with service._open_session():
            frozen.append(gc.get_freeze_count())
            gc.unfreeze()

    monkeypatch.setattr(listener, "run_server", run_server)
    outcome = edgedec("serve", "-m", bundle, "--port", "0", "--disk-cache", "8MiB")
    assert outcome.code == 0, outcome.stderr
    assert frozen[0]  # Python looks at none of them while requests are answered
    (folder,) = folders
    (disk,) = kept
    assert isinstance(disk, SpillFolder)
    assert (disk.path, disk.limit_bytes) == (folder, 8 << 20)
    assert not folder.exists()


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(
    ("words", "sequences"),
    [
        ("", 4),
        ("-np 7", 7),
        ("--parallel 2 --memory-budget 64MiB", 2),
        ("--memory-budget 64MiB -c 1024", 4),
        ("--memory-budget 64MiB", 2),  # the whole context of two texts fits, beside room for a grammar
        ("--memory-budget 20MiB", 1),  # further texts would have less context
        ("--device sim", 1),
        ("--embeddings", 4),
    ],
)
def test_texts_at_a_time(
    edgedec: Edgedec, started: Started, monkeypatch: pytest.MonkeyPatch, words: str, sequences: int
) -> None:
    asked: list[int] = []

    def open_session(
        run: RunOptions, spec: object, budget: object, *, sequences: int, beside: dict[str, int], embeddings: bool
    ) -> None:
        asked.append(sequences)
        room = GRAMMAR_ROOM if "64MiB" in words else {}  # there is no budget, or no room in it
        assert embeddings is (words == "--embeddings")
        assert beside == {**server_items(2048, requests=256, connections=320), **room}

    monkeypatch.setattr(RunOptions, "open_session", open_session)
    outcome = edgedec("serve", "-m", "demo", "--port", "0", *words.split())
    assert outcome.code == 0, outcome.stderr
    ((_, service, _),) = started
    service._open_session()
    assert asked == [sequences]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("--host 0.0.0.0", 2, "--host 0.0.0.0 can be reached from other machines, and no API key is set"),
        ("--host ::", 2, "can be reached from other machines"),
        ("--cors-origin *", 2, "lets every web page use the server"),
        ("--api-key two words", 2, ""),
        ("--api-key-file EMPTY", 2, "the file is empty"),
        ("--api-key-file BLANK", 2, "the file has no key"),
        ("--api-key-file nowhere", 2, "nowhere"),
        ("--max-body many", 2, "--max-body 'many' is not a size"),
        ("--disk-cache many", 2, "--disk-cache 'many' is not a size"),
        ("--host 203.0.113.7 --api-key k", 3, "--host 203.0.113.7 --port 0: "),
        ("--spec-type nonsense", 2, "nonsense"),
        ("--pooling last", 2, "--pooling last is for embeddings; add --embeddings"),
        ("--embeddings --pooling cls", 2, "--pooling must be mean or last, not 'cls'"),
    ],
)
def test_refusals(edgedec: Edgedec, started: Started, tmp_path: Path, words: str, code: int, message: str) -> None:
    (tmp_path / "EMPTY").write_text("")
    (tmp_path / "BLANK").write_text(" \n\n")
    arguments = [str(tmp_path / word) if word in ("EMPTY", "BLANK") else word for word in words.split()]
    outcome = edgedec("serve", "-m", "demo", "--port", "0", *arguments)
    assert (outcome.code, started) == (code, [])
    assert message in outcome.stderr


def test_a_key_that_is_refused_is_not_printed(edgedec: Edgedec, started: Started) -> None:
    outcome = edgedec("serve", "-m", "demo", "--api-key", "my secret")
    assert outcome.code == 2
    assert "secret" not in outcome.stderr
    outcome = edgedec("serve", "-m", "demo", env={"EDGEDEC_SERVE_API_KEY": "my secret"})
    assert outcome.code == 2
    assert "secret" not in outcome.stderr
    outcome = edgedec("serve", "-m", "demo", "--port", "0", "--api-key", "my://secret")
    assert (outcome.code, len(started)) == (0, 1)
    assert "secret" not in outcome.stderr


def test_a_port_in_use_is_named(edgedec: Edgedec, started: Started) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        outcome = edgedec("serve", "-m", "demo", "--port", str(other.getsockname()[1]))
    assert outcome.code == 3
    assert "choose another address or port" in outcome.stderr


def test_a_port_in_use_is_named_before_the_model_is_opened(edgedec: Edgedec, started: Started) -> None:
    """The disk cache opens the model, which takes long to verify where it is large."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        outcome = edgedec("serve", "-m", "no/such/model", "--port", port, "--disk-cache", "8MiB")
    assert outcome.code == 3
    assert f"--port {port}: Address already in use" in outcome.stderr


def test_a_passed_socket_is_in_the_place_of_the_options(
    edgedec: Edgedec, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*words: str, address: str = "127.0.0.2", **env: str) -> tuple[Outcome, int]:
        sock = socket.create_server((address, 0))
        port = sock.getsockname()[1]
        monkeypatch.setattr(systemd, "_FIRST_DESCRIPTOR", sock.detach())
        passed = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
        return edgedec("serve", "-m", "demo", *words, env=passed | env), port

    outcome, _ = run(EDGEDEC_SERVE_PORT="1")  # the project's default is for other calls
    assert outcome.code == 0, outcome.stderr
    ((gate, _, address),) = started
    assert (address, gate.settings.addresses) == ("127.0.0.2", ("127.0.0.2",))
    outcome, _ = run("--port", "8080", "--host", "127.0.0.1")
    assert (outcome.code, len(started)) == (2, 1)
    assert "--host and --port: systemd passed a socket" in outcome.stderr
    outcome, _ = run(address="0.0.0.0")
    assert (outcome.code, len(started)) == (2, 1)
    assert "can be reached from other machines, and no API key is set" in outcome.stderr


@pytest.mark.parametrize(("words", "logs"), [("", True), ("--no-log-requests", False)])
def test_requests_are_logged_on_stderr(words: str, logs: bool) -> None:
    with request_log(log_format_named("text"), wanted=not words) as log:
        assert (log is not None) == logs


def test_an_unknown_form_of_the_log_is_refused(edgedec: Edgedec, started: Started) -> None:
    outcome = edgedec("serve", "-m", "demo", "--port", "0", "--log-format", "jsn")
    assert (outcome.code, started) == (2, [])
    assert "--log-format must be one of text, json, not 'jsn'; did you mean 'json'?" in outcome.stderr


def test_the_log_of_the_process_has_the_form_of_the_requests(edgedec: Edgedec, started: Started) -> None:
    outcome = edgedec("serve", "-m", "demo", "--port", "0", "--log-format", "json")
    assert outcome.code == 0, outcome.stderr
    (handler,) = logging.getLogger().handlers
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.LogRecord("edgedec.x", logging.WARNING, "", 0, "a \n %s", ("b",), sys.exc_info())
    line = handler.format(record)
    assert "\n" not in line
    values = json.loads(line)
    assert (values["level"], values["source"]) == ("warning", "edgedec.x")
    assert values["message"].startswith("a \n b\nTraceback")


@pytest.mark.thorough
def test_all_lines_of_a_json_log_are_json(
    edgedec: Edgedec, bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The notes about a run under a tight budget come again at each reload; lines about progress come with them."""

    def run_server(
        gate: Gate, service: ModelService, *sockets: socket.socket, ready: Callable[[], None], **options: Any
    ) -> None:
        for _ in range(2):
            service._open_session().close()
        with console.progress("preparing the model") as report:
            report("weights", 1, 2)
            assert tick.wait(30)
        ready()

    def note(text: str) -> None:
        real(text)
        if text.startswith("preparing the model: 50 %"):
            tick.set()

    tick, real = threading.Event(), console.note
    monkeypatch.setattr(console, "note", note)
    monkeypatch.setattr(console, "LINE_INTERVAL_S", 0.01)
    monkeypatch.setattr(listener, "run_server", run_server)
    words = ["--port", "0", "--log-format", "json", "--kv-policy", "auto", "--memory-budget"]
    refusal = edgedec("serve", "-m", bundle, *words, "4MiB").stderr
    least = re.search(r"try --memory-budget (\d+MiB)", refusal)
    assert least is not None, refusal
    outcome = edgedec("serve", "-m", bundle, *words, least[1])
    assert outcome.code == 0, outcome.stderr
    lines = [json.loads(line) for line in outcome.stderr.splitlines()]
    assert {(line["level"], line["source"]) for line in lines} == {("notice", "edgedec")}
    texts = [line["message"] for line in lines]
    for part, times in (("because the memory budget is ", 2), ("keys and values: full", 2), ("edgedec serves ", 1)):
        assert sum(part in text for text in texts) == times, texts
    assert any(text.startswith("preparing the model: 50 %, weights") for text in texts)
    real("plain")
    assert capsys.readouterr().err == "plain\n"


def test_without_its_packages_the_command_says_what_to_install(
    edgedec: Edgedec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgedec.cli.serve.find_spec", lambda name: None)
    outcome = edgedec("serve", "-m", "demo")
    assert outcome.code == 3
    assert "edgedec serve needs fastapi and uvicorn; run: " in outcome.stderr
    assert "[serve]" in outcome.stderr


@contextmanager
def process(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a server in a process, and yield it with its address."""
    command = [sys.executable, "-m", "edgedec", "serve", "-m", "demo", "-c", "1024", "--port", "0", *words]
    env = {name: value for name, value in os.environ.items() if name != "XDG_CACHE_HOME"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env) as server:
        assert server.stderr is not None
        try:
            line = server.stderr.readline()
            match = re.search(r"at (http://127\.0\.0\.1:\d+)", line)
            assert match is not None, line + server.stderr.read()
            yield server, match[1]
        finally:
            server.kill()


def stream(address: str, tokens: int) -> Any:
    body = {"prompt": "Once upon a time", "max_tokens": tokens, "stream": True, "ignore_eos": True, "temperature": 0}
    request = urllib.request.Request(
        f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    return urllib.request.urlopen(request, timeout=60)


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_a_running_answer_end(number: signal.Signals) -> None:
    with process() as (server, address):
        with stream(address, 400) as response:
            assert response.readline().startswith(b"data: ")
            server.send_signal(number)
            events = [line for line in response if line.startswith(b"data: ")]
        assert events[-1] == b"data: [DONE]\n"
        assert json.loads(events[-2].removeprefix(b"data: "))["timings"]["predicted_n"] == 400
        assert server.wait(30) == 0


@pytest.mark.thorough
def test_a_second_signal_ends_the_server_at_once() -> None:
    with process() as (server, address):
        threads = [threading.Thread(target=lambda: _ignore(address), daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        with stream(address, 900) as response:
            assert response.readline().startswith(b"data: ")
            server.send_signal(signal.SIGTERM)
            while b"ending" not in _health(address):
                pass
            server.send_signal(signal.SIGTERM)
            assert server.wait(30) == 128 + signal.SIGTERM


def _ignore(address: str) -> None:
    with suppress(OSError, http.client.HTTPException):
        stream(address, 900).read()


def _health(address: str) -> bytes:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=60) as response:
            return bytes(response.read())
    except urllib.error.HTTPError as error:
        return bytes(error.read())


@pytest.mark.thorough
def test_a_model_that_does_not_fit_ends_the_server_with_its_code() -> None:
    command = [sys.executable, "-m", "edgedec", "serve", "-m", "demo", "--port", "0", "--memory-budget", "2MiB"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 4
    assert "--memory-budget" in ended.stderr or "budget" in ended.stderr


@pytest.mark.thorough
def test_a_service_of_systemd(tmp_path: Path) -> None:
    """A socket is passed, readiness, signs of life and the end are told, and the log is JSON; in a process of its own."""
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.bind(str(tmp_path / "notify"))
    receiver.settimeout(60)
    passed = socket.create_server(("127.0.0.1", 0))
    port = passed.getsockname()[1]
    # The launcher's process becomes the server's, so it knows the number that LISTEN_PID must have.
    launcher = (
        f"import os, sys; os.dup2({passed.fileno()}, 3); own = str(os.getpid()); "
        "os.environ.update(LISTEN_PID=own, WATCHDOG_PID=own, LISTEN_FDS='1'); os.execv(sys.argv[1], sys.argv[1:])"
    )
    words = ["-m", "edgedec", "serve", "-m", "demo", "-c", "512", "--log-format", "json"]
    command = [sys.executable, "-c", launcher, sys.executable, *words]
    env = os.environ | {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env, pass_fds=[passed.fileno()]) as server:
        passed.close()
        assert server.stderr is not None
        told = list[bytes]()
        while not told or not told[-1].startswith(b"READY=1"):
            told.append(receiver.recv(4096))
        assert told[0] == b"STATUS=loads demo"
        assert told[-1] == f"READY=1\nSTATUS=serves demo at http://127.0.0.1:{port}".encode()
        while receiver.recv(4096) != b"WATCHDOG=1":
            pass
        with stream(f"http://127.0.0.1:{port}", 5) as response:
            response.read()
        server.send_signal(signal.SIGTERM)
        while not receiver.recv(4096).startswith(b"STOPPING=1"):
            pass
        assert server.wait(60) == 0
        ready, *requests = [json.loads(line) for line in server.stderr]
    receiver.close()
    assert ready["message"] == f"edgedec serves demo at http://127.0.0.1:{port}"
    (request,) = requests
    assert (request["path"], request["status"], request["tokens_written"]) == ("/v1/completions", 200, 5)
