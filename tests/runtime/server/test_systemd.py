"""Test what the server takes from systemd and tells it, with sockets in the place of systemd's."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from edgedec.errors import UsageError
from edgedec.runtime.server import systemd
from edgedec.runtime.server.app import create_app
from edgedec.runtime.server.listener import run_server
from edgedec.runtime.server.service import ModelService
from edgedec.runtime.server.settings import ServerSettings
from edgedec.runtime.server.sockets import listen
from edgedec.runtime.server.systemd import Notifier, passed_socket
from tests.runtime.server.support.fake_session import ScriptedSession

OWN = str(os.getpid())


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


def passing(monkeypatch: pytest.MonkeyPatch, descriptor: int) -> None:
    monkeypatch.setattr(systemd, "_FIRST_DESCRIPTOR", descriptor)


def test_a_passed_socket_is_taken_once(listening: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    descriptor = os.dup(listening.fileno())
    os.set_inheritable(descriptor, True)
    passing(monkeypatch, descriptor)
    environment = {"LISTEN_PID": OWN, "LISTEN_FDS": "1", "LISTEN_FDNAMES": "edgedec.socket", "OTHER": "1"}
    taken = passed_socket(environment)
    assert taken is not None
    with taken:
        assert (taken.fileno(), taken.getsockname()) == (descriptor, listening.getsockname())
        assert not os.get_inheritable(descriptor)
    assert environment == {"OTHER": "1"}
    assert passed_socket(environment) is None


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"LISTEN_FDS": "1"},
        {"LISTEN_PID": str(os.getppid()), "LISTEN_FDS": "1"},
        {"LISTEN_PID": "", "LISTEN_FDS": "1"},
        {"LISTEN_PID": f" {OWN}", "LISTEN_FDS": "1"},
        {"LISTEN_PID": OWN, "LISTEN_FDS": "0"},
    ],
)
def test_sockets_of_others_are_left_alone(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    passing(monkeypatch, -5)  # would fail
    assert passed_socket(environment) is None
    assert environment == {}


@pytest.mark.parametrize("count", ["", "one", "-1", "1.0", "٣", "9" * 5000])
def test_a_count_that_is_none_is_refused(count: str) -> None:
    with pytest.raises(UsageError, match=r"LISTEN_FDS must be a number from 0 on, not '.{0,40}'; it is set by systemd"):
        passed_socket({"LISTEN_PID": OWN, "LISTEN_FDS": count})


def test_several_sockets_are_refused_by_name(listening: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    passing(monkeypatch, listening.fileno())
    port = listening.getsockname()[1]
    with pytest.raises(UsageError, match=rf"systemd passed 2 sockets \(127\.0\.0\.1:{port}, .*leave one ListenStream="):
        passed_socket({"LISTEN_PID": OWN, "LISTEN_FDS": "2"})
    with pytest.raises(UsageError, match=r"systemd passed 999999999999 sockets \(127.*, \.\.\.\)"):
        passed_socket({"LISTEN_PID": OWN, "LISTEN_FDS": "999999999999"})
    assert listening.getsockname()  # it is still open


def _unix(folder: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(folder / "s"))
    sock.listen()
    return sock


def _datagrams(folder: Path) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    return sock


def _connected(folder: Path) -> socket.socket:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return socket.create_connection(server.getsockname()[:2])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_unix, "a socket of family AF_UNIX, which has no port; give the .socket unit ListenStream="),
        (_datagrams, "which does not listen"),
        (_connected, "which does not listen"),  # the unit has Accept=yes
    ],
)
def test_other_sockets_are_refused(
    make: Callable[[Path], socket.socket], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    passing(monkeypatch, make(tmp_path).detach())
    with pytest.raises(UsageError, match=message):
        passed_socket({"LISTEN_PID": OWN, "LISTEN_FDS": "1"})


def test_what_is_no_socket_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        for descriptor in (file.fileno(), 1 << 20):
            passing(monkeypatch, descriptor)
            with pytest.raises(UsageError, match=f"file descriptor {descriptor}, which is no socket"):
                passed_socket({"LISTEN_PID": OWN, "LISTEN_FDS": "1"})


@pytest.fixture(params=["path", "abstract"])
def receiver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """Return the address that systemd would give, and its end of the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        name = str(tmp_path / "notify") if request.param == "path" else f"@edgedec test {OWN}"
        sock.bind(name.replace("@", "\0", 1) if name[0] == "@" else name)
        sock.settimeout(30)
        yield name, sock


def test_states_arrive(receiver: tuple[str, socket.socket]) -> None:
    name, sock = receiver
    environment = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": OWN, "OTHER": "1"}
    notifier = Notifier.of_environment(environment)
    assert (notifier.watchdog_s, environment) == (3.0, {"OTHER": "1"})
    notifier.tell("READY=1", status="serves a model")
    assert sock.recv(999) == b"READY=1\nSTATUS=serves a model"


def test_a_name_cannot_forge_a_state(receiver: tuple[str, socket.socket]) -> None:
    name, sock = receiver
    Notifier(name).tell(status="loads a\nREADY=1\r\x00\udcff é")
    lines = sock.recv(999).decode().split("\n")
    assert lines == ["STATUS=loads a READY=1  ? é"]


def test_nobody_listens(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    Notifier.of_environment({}).tell("READY=1")
    Notifier.of_environment({"NOTIFY_SOCKET": ""}).tell("READY=1")
    assert not caplog.messages
    Notifier(str(tmp_path / "gone")).tell("READY=1", status="a")
    Notifier("/" + "x" * 300).tell("READY=1")
    assert [message.partition(":")[0] for message in caplog.messages] == ["systemd was not told READY=1"] * 2


@pytest.mark.parametrize("address", ["vsock:2:1234", "relative", "@", "/"])
def test_other_receivers_are_refused(address: str) -> None:
    with pytest.raises(UsageError, match="NOTIFY_SOCKET must be an absolute path, or @ and a name"):
        Notifier(address)


def test_a_watchdog_of_another_process_is_not_fed() -> None:
    other = {"NOTIFY_SOCKET": "/s", "WATCHDOG_USEC": "5", "WATCHDOG_PID": str(os.getppid())}
    assert Notifier.of_environment(other).watchdog_s is None
    assert Notifier.of_environment({"NOTIFY_SOCKET": "/s", "WATCHDOG_USEC": "5"}).watchdog_s == 5e-6
    for value in ("0", "soon", "-5"):
        with pytest.raises(UsageError, match="WATCHDOG_USEC must be a number from 1 on"):
            Notifier.of_environment({"WATCHDOG_USEC": value})


@pytest.mark.thorough
def test_a_server_gives_signs_of_life_while_its_model_lives(
    receiver: tuple[str, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two signs come; then the model's thread fails, and no more do."""
    name, sock = receiver
    service = ModelService(lambda: ScriptedSession().real)
    gate = create_app(service, ServerSettings(model_name="m"))
    received, late = list[bytes](), list[bytes]()
    looks, lives = threading.Semaphore(0), True

    def is_alive(service: ModelService) -> bool:
        looks.release()
        return lives

    monkeypatch.setattr(ModelService, "alive", property(is_alive))
    notifier = Notifier(name, watchdog_s=0.01)

    def watch() -> None:
        nonlocal lives
        while received.count(b"WATCHDOG=1") < 2 or b"READY=1" not in received:
            received.append(sock.recv(999))
        lives = False
        while looks.acquire(blocking=False):
            pass
        for _ in range(2):
            assert looks.acquire(timeout=30)  # the sign of a look before has been sent after these
        sock.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                sock.recv(999)
        for _ in range(3):
            assert looks.acquire(timeout=30)
        with suppress(BlockingIOError):
            late.append(sock.recv(999))

    def watch_to_the_end() -> None:
        try:
            watch()
        finally:
            sock.settimeout(30)
            os.kill(os.getpid(), signal.SIGTERM)

    watcher = threading.Thread(target=watch_to_the_end)
    watcher.start()
    run_server(gate, service, listen("127.0.0.1", 0), ready=lambda: notifier.tell("READY=1"), notifier=notifier)
    watcher.join()
    assert not late
    assert sock.recv(999).startswith(b"STOPPING=1\nSTATUS=")


@pytest.mark.thorough
def test_a_model_thread_that_fails_is_noticed() -> None:
    service = ModelService(lambda: ScriptedSession().real)
    assert service.alive  # it has not begun
    service.start()
    service.loaded.result(30)
    assert service.alive

    def fail(session: object) -> None:
        raise ValueError("a bug")

    service.close()
    assert service.alive  # its end was asked for
    broken = ModelService(lambda: ScriptedSession().real)
    broken._use = fail  # type: ignore[method-assign]  # a bug in the thread
    threading.excepthook, kept = (lambda arguments: None), threading.excepthook
    try:
        broken.start()
        broken._thread.join(30)
    finally:
        threading.excepthook = kept
    assert not broken.alive
    broken.close()
