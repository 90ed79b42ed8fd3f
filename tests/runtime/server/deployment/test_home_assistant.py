"""Test the add-on of Home Assistant: its configuration, its options, and the end of its Dockerfile."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # installed with huggingface_hub, which tokenizers requires

from edgedec import __version__
from edgedec.cli.serve import serve
from edgedec.runtime.server.deployment.home_assistant import run
from edgedec.runtime.server.deployment.home_assistant.run import VARIABLES, main, variables
from tests.runtime.server.support.containerfile import parse, properties

FOLDER = Path(run.__file__).parent
CONFIG: dict[str, Any] = yaml.safe_load((FOLDER / "config.yaml").read_text())
STEPS = parse((FOLDER.parent / "Containerfile").read_text() + (FOLDER / "Dockerfile.end").read_text())


def test_the_options_are_those_of_the_server() -> None:
    assert CONFIG["schema"].keys() == VARIABLES.keys()
    assert CONFIG["options"].keys() <= CONFIG["schema"].keys()
    assert set(VARIABLES.values()) <= {f"EDGEDEC_SERVE_{name.upper()}" for name in serve.__annotations__}
    required = {name for name, kind in CONFIG["schema"].items() if not kind.endswith("?")}
    assert required == CONFIG["options"].keys()  # the supervisor asks for values that are missing
    assert CONFIG["options"]["api_key"] is None
    assert CONFIG["schema"]["api_key"] == "password"


def test_the_page_of_the_addon_has_every_option() -> None:
    page = (FOLDER / "DOCS.md").read_text()
    assert re.findall(r"^\| `([a-z_]+)` \|", page, re.MULTILINE) == list(CONFIG["schema"])


def test_the_addon_is_that_of_this_version() -> None:
    assert CONFIG["version"] == __version__
    assert set(CONFIG["arch"]) == {"aarch64", "amd64"}  # ONNX Runtime has wheels for these


def test_the_port_and_the_models_are_those_of_the_image() -> None:
    image = properties(STEPS)
    (port,) = CONFIG["ports"]
    assert port == f"{image.env['EDGEDEC_SERVE_PORT']}/tcp"
    assert f"[PORT:{image.env['EDGEDEC_SERVE_PORT']}]" in CONFIG["webui"]
    assert [entry["type"] for entry in CONFIG["map"] if entry["read_only"]] == ["share"]
    assert CONFIG["options"]["model"].startswith("/share/")


def test_the_addon_asks_for_no_rights() -> None:
    asked = {"privileged", "full_access", "host_network", "docker_api", "hassio_api", "homeassistant_api", "devices"}
    assert not asked & CONFIG.keys()


def test_the_server_is_started_by_the_addon() -> None:
    image = properties(STEPS)
    assert image.entrypoint == ["/opt/edgedec/bin/python", "-m", run.__name__]
    assert image.command == []
    assert image.env["EDGEDEC_SERVE_HOST"] == "0.0.0.0"
    assert image.health
    assert str(run.OPTIONS.parent) == image.env["XDG_CACHE_HOME"]
    plain = properties(parse((FOLDER.parent / "Containerfile").read_text()))
    assert f"{run.USER}:{run.USER}" == plain.user
    assert image.user == "0:0"  # it gives the rights up itself


def test_options_become_variables() -> None:
    options = {"model": "/share/m", "api_key": "k", "memory_budget": "1GiB", "ctx_size": 512}
    assert variables(options) == {
        "EDGEDEC_SERVE_MODEL": "/share/m",
        "EDGEDEC_SERVE_API_KEY": "k",
        "EDGEDEC_SERVE_MEMORY_BUDGET": "1GiB",
        "EDGEDEC_SERVE_CTX_SIZE": "512",
    }
    assert variables({"model": "m", "api_key": None, "memory_budget": ""}) == {"EDGEDEC_SERVE_MODEL": "m"}


@pytest.mark.parametrize("value", [True, 1.5, ["secret"], {"secret": 1}, "secret\0"])
def test_other_values_are_refused_and_not_shown(value: object) -> None:
    with pytest.raises(ValueError, match="the option api_key must be a text or a number") as error:
        variables({"api_key": value})
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        (b"{", "Expecting property name"),
        (b"[]", "it must be an object"),
        (json.dumps({"modle": "m"}).encode(), "the option modle is not known; known are model"),
        (b'{"model": "\xff"}', "codec can't decode"),
    ],
)
def test_options_that_are_none_end_the_start(
    content: bytes | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "options.json"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setattr(run, "OPTIONS", path)
    monkeypatch.setattr("os.setuid", None)  # would fail
    with pytest.raises(SystemExit, match=rf"edgedec: {re.escape(str(path))}: .*{message}"):
        main()
