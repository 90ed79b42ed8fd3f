"""Test the units of systemd: their form, and a service that systemd itself runs, in a container of systemd-nspawn."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgedec.cli.serve import serve
from edgedec.runtime.server import deployment
from tests.runtime.server.deployment.conftest import BUILD_ENVIRONMENT
from tests.runtime.server.support.containerfile import Image, contained

FOLDER = Path(deployment.__path__[0])
PROGRAM = "/opt/edgedec/bin/edgedec"
MOST_EXPOSED = 1.0  # points of 10, as systemd-analyze computes them; fewer are better


def settings(name: str) -> list[tuple[str, str]]:
    """Return the settings of a unit in their order."""
    lines = (FOLDER / name).read_text().splitlines()
    pairs = [line.partition("=") for line in lines if line and not line.startswith(("#", "["))]
    return [(key, value) for key, _, value in pairs]


def test_the_service_has_what_the_server_needs() -> None:
    service = settings("edgedec.service")
    found = dict(service)
    assert (found["Type"], found["ExecStart"]) == ("notify", f"{PROGRAM} serve")
    assert found["Requires"] == found["After"] == "edgedec.socket"
    assert found["PrivateNetwork"] == "yes"
    assert "ProcSubset" not in found  # the budget is read from /proc/meminfo
    assert found["RestartPreventExitStatus"].split() == ["2", "4"]  # docs/command-line.md has the codes
    assert {"MemoryMax", "WatchdogSec", "DynamicUser", "MemoryDenyWriteExecute"} <= found.keys()
    names = {f"EDGEDEC_SERVE_{name.upper()}" for name in serve.__annotations__}
    variables = {value.partition("=")[0] for key, value in service if key == "Environment"}
    assert {name for name in variables if name.startswith("EDGEDEC_")} <= names


def test_only_this_machine_reaches_the_socket() -> None:
    addresses = [value for key, value in settings("edgedec.socket") if key == "ListenStream"]
    assert addresses == ["127.0.0.1:8080"]
    assert "Accept" not in dict(settings("edgedec.socket"))


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """Return copies of the units, which run a program that is there."""
    for name in ("edgedec.service", "edgedec.socket"):
        text = (FOLDER / name).read_text()
        (tmp_path / name).write_text(text.replace(PROGRAM, f'"{sys.executable}"'))
    return tmp_path


def analyze(*words: str, folder: Path) -> str:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    ended = subprocess.run(["systemd-analyze", *words], cwd=folder, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def test_systemd_knows_every_setting(units: Path) -> None:
    said = analyze("verify", "./edgedec.service", "./edgedec.socket", folder=units)
    assert "edgedec" not in said


def test_the_service_is_closed(units: Path) -> None:
    said = analyze("security", "--offline=true", "--no-pager", "./edgedec.service", folder=units)
    match = re.search(r"exposure level for edgedec\.service: ([0-9.]+)", said)
    assert match is not None, said
    assert float(match[1]) <= MOST_EXPOSED


CHECK_UNIT = """
[Unit]
After=edgedec.service
[Service]
Type=oneshot
ExecStart=/check/run.sh
[Install]
WantedBy=multi-user.target
"""
# Runs in the container, and leaves files in /check/out. The last line ends the container, whatever happens before.
CHECK = """#!/bin/sh
mkdir -p /check/out
ask() { /opt/edgedec/bin/python -I /check/ask.py "$@"; }
ask > /check/out/answers
systemctl show edgedec.service -p StatusText -p ActiveState -p MemoryMax > /check/out/state
number=$(systemctl show -p MainPID --value edgedec.service)
grep -E '^(Uid|CapEff|NoNewPrivs|Seccomp):' "/proc/$number/status" > /check/out/process
systemctl kill -s STOP edgedec.service
for second in $(seq 60); do
  sleep 1
  [ "$(systemctl show -p NRestarts --value edgedec.service)" = 0 ] || break
done
ask > /check/out/again
systemctl stop edgedec.socket edgedec.service
systemctl show edgedec.service -p Result -p NRestarts -p ExecMainStatus > /check/out/end
journalctl -b -u edgedec.service --no-pager -o cat > /check/out/log
systemctl poweroff --no-block
"""
ASK = """
import http.client, json, time
body = json.dumps({"prompt": "Once", "max_tokens": 5, "temperature": 0})
status = 503
while status == 503:  # the model is being loaded
    time.sleep(0.2)
    connection = http.client.HTTPConnection("127.0.0.1", 8080, timeout=120)
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    status, answer = response.status, json.loads(response.read())
print(json.dumps([status, answer]))
"""


@pytest.mark.nightly
def test_systemd_runs_the_service(built: Image, tmp_path: Path) -> None:
    """The unit is started with all its limits, answers through the passed socket, is restarted by the watchdog, and ends.

    The control group's memory is not limited where the machine does not hand that on to containers.
    """
    if shutil.which("systemd-nspawn") is None:
        pytest.skip("systemd-nspawn is not installed")
    root = tmp_path / "machine"
    subprocess.run(["cp", "-a", "--reflink=auto", f"{built.root}/.", root], check=True)
    system = Image(root=root)
    install = (
        "apt-get update -qq && apt-get install -y -qq --no-install-recommends systemd systemd-sysv dbus >/dev/null"
    )
    subprocess.run(contained(system, ["sh", "-c", install], env=BUILD_ENVIRONMENT), check=True)
    folder = root / "etc/systemd/system"
    for name in ("edgedec.service", "edgedec.socket"):
        shutil.copy(FOLDER / name, folder)
    (folder / "edgedec.service.d").mkdir()
    (folder / "edgedec.service.d/test.conf").write_text("[Service]\nWatchdogSec=3\nRestartSec=0\n")
    (folder / "check.service").write_text(CHECK_UNIT)
    (root / "etc/edgedec").mkdir()
    (root / "etc/edgedec/serve.env").write_text("EDGEDEC_SERVE_MODEL=demo\nEDGEDEC_SERVE_CTX_SIZE=512\n")
    (root / "check").mkdir()
    (root / "check/ask.py").write_text(ASK)
    (root / "check/run.sh").write_text(CHECK)
    (root / "check/run.sh").chmod(0o755)
    enable = ["systemctl", "enable", "edgedec.socket", "edgedec.service", "check.service"]
    subprocess.run(contained(system, enable, env={}), check=True)
    machine = ["systemd-nspawn", "--register=no", "--keep-unit", "--private-network", "-D", str(root), "-b"]
    subprocess.run(machine, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=400)

    def left(name: str) -> str:
        return (root / "check/out" / name).read_text()

    log = left("log")
    for name in ("answers", "again"):
        status, answer = json.loads(left(name))
        assert (status, answer["usage"]["completion_tokens"]) == (200, 5), log
    state = dict(line.split("=", 1) for line in left("state").splitlines())
    assert state["ActiveState"] == "active"
    assert state["StatusText"] == "serves demo at http://127.0.0.1:8080"
    process = dict(line.split(":\t", 1) for line in left("process").splitlines())
    assert process["Uid"].split()[0] != "0"
    assert (int(process["CapEff"], 16), process["NoNewPrivs"], process["Seccomp"]) == (0, "1", "2")
    end = dict(line.split("=", 1) for line in left("end").splitlines())
    assert (end["Result"], end["NRestarts"], end["ExecMainStatus"]) == ("success", "1", "0"), log
    assert "Watchdog timeout" in log
    assert log.count("POST /v1/completions 200 ") == 2
    shutil.rmtree(root)
