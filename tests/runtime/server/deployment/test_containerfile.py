"""Test the container file: its properties, and a server that is built and run by its steps, without a container engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from edgedec.cli.serve import serve
from tests.runtime.server.support.containerfile import (
    Image,
    Step,
    contained,
    declare,
    parse,
    properties,
    sources,
    stages,
)

ROOT = Path(__file__).parents[4]
FOLDER = ROOT / "runtime/server/deployment"
STEPS = parse((FOLDER / "Containerfile").read_text())
KEY = "key-of-the-test"

ASK = """
import http.client, json, sys
connection = http.client.HTTPConnection("127.0.0.1", 8080, timeout=60)
head = {"Content-Type": "application/json", "Authorization": "Bearer " + sys.argv[1]}
body = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 5, "temperature": 0}
connection.request("POST", "/v1/chat/completions", json.dumps(body), head)
response = connection.getresponse()
print(json.dumps([response.status, json.loads(response.read())]))
"""


def test_the_server_is_no_root_and_is_watched() -> None:
    image = properties(STEPS)
    user, group = map(int, image.user.split(":"))
    assert user > 0
    assert group > 0
    *interpreter, program = image.health
    assert interpreter == ["/opt/edgedec/bin/python", "-I", "-c"]
    compile(program, "health", "exec")
    assert "/health" in program
    assert (image.stop, image.ports) == ("SIGTERM", [image.env["EDGEDEC_SERVE_PORT"]])
    assert [*image.entrypoint, *image.command] == ["/opt/edgedec/bin/edgedec", "serve"]
    assert image.volumes == ["/models", f"{image.env['XDG_CACHE_HOME']}/edgedec"]


def test_nothing_comes_from_an_address_and_no_secret_is_in_it() -> None:
    assert all(step.name != "ADD" for step in STEPS)
    assert all((ROOT / name).exists() for name in sources(STEPS))
    assert "." not in sources(STEPS)
    text = "\n".join(step.text for step in STEPS)
    assert "://" not in text
    assert "curl" not in text
    assert not [name for name in properties(STEPS).env if "KEY" in name]


def test_the_compiler_stays_in_the_first_stage() -> None:
    first, last = stages(STEPS)
    assert any("g++" in step.text for step in first)
    assert not [step for step in last if step.name == "RUN" and ("g++" in step.text or "pip" in step.text)]
    assert [step.flags["from"] for step in last if step.name == "COPY"] == [first[0].words[2]]


def test_all_packages_are_copied() -> None:
    tops = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    copied = set(sources(STEPS))
    assert tops <= copied
    assert {"pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"} <= copied


def test_every_variable_is_an_option_of_the_server() -> None:
    names = {f"EDGEDEC_SERVE_{name.upper()}" for name in serve.__annotations__}
    assert {name for name in properties(STEPS).env if name.startswith("EDGEDEC_")} <= names


def test_an_unknown_instruction_is_an_error() -> None:
    with pytest.raises(AssertionError, match="an unknown instruction"):
        properties([*STEPS, Step("ONBUILD", {}, "RUN true")])


@contextmanager
def running(image: Image, env: dict[str, str]) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run the image's command without a network; yield its process and the number of the server, when it is ready."""
    command = contained(image, [*image.entrypoint, *image.command], env=env, network=False)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        try:
            ready = server.stderr.readline()
            assert ready == "edgedec serves demo at http://0.0.0.0:8080\n", ready + server.stderr.read()
            (child,) = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
            yield server, int(child)
        finally:
            server.kill()


def check_answers(image: Image, server: subprocess.Popen[str], number: int) -> None:
    """Check the user of a server, its health, a chat, its end and its log."""
    status = Path(f"/proc/{number}/status").read_text()
    for line in ("Uid:", "Gid:"):
        assert set(status.partition(line)[2].splitlines()[0].split()) == {"10001"}
    within = ["nsenter", "--target", str(number), "--net", "--pid"]
    health = contained(image, image.health, env={})
    subprocess.run([*within, *health[health.index("chroot") :]], check=True, timeout=60)
    asked = subprocess.run(
        [*within, sys.executable, "-c", ASK, KEY], check=True, capture_output=True, text=True, timeout=120
    )
    code, answer = json.loads(asked.stdout)
    assert (code, answer["usage"]["completion_tokens"]) == (200, 5)
    os.kill(number, signal.SIGTERM)
    assert server.wait(60) == 0
    assert server.stderr is not None
    log = server.stderr.read()
    assert " POST /v1/chat/completions 200 " in log
    assert KEY not in log


@pytest.mark.nightly
def test_the_steps_make_a_server_that_answers(built: Image) -> None:
    """The server runs as the image's user, without a network, and answers; without a key it refuses to start."""
    assert built.root is not None
    assert not (built.root / "usr/bin/g++").exists()
    assert not list((built.root / "opt/edgedec/bin").glob("pip*"))
    options = {"EDGEDEC_SERVE_MODEL": "demo", "EDGEDEC_SERVE_CTX_SIZE": "512"}
    words = [*built.entrypoint, *built.command]
    closed = subprocess.run(contained(built, words, env=options, network=False), capture_output=True, text=True)
    assert closed.returncode == 2
    assert "no API key is set" in closed.stderr
    with running(built, options | {"EDGEDEC_SERVE_API_KEY": KEY}) as (server, number):
        check_answers(built, server, number)


@pytest.mark.nightly
def test_the_steps_of_the_addon_make_a_server_that_answers(built: Image) -> None:
    """Options that only root can read reach the server, which is not root."""
    assert built.root is not None
    image = replace(built, env=dict(built.env))
    for step in parse((FOLDER / "home_assistant/Dockerfile.end").read_text()):
        declare(image, step)
    options = built.root / "data/options.json"
    options.parent.mkdir()
    options.write_text(json.dumps({"model": "demo", "api_key": KEY, "memory_budget": "64MiB", "ctx_size": 512}))
    options.chmod(0o600)
    with running(image, {}) as (server, number):
        check_answers(image, server, number)
