"""Test the precedence of settings: flag, environment, project file, user file, default."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgedec.cli.config import config_files
from tests.edgedec.cli.conftest import Edgedec


@pytest.fixture
def user_file() -> Path:
    file, _ = config_files()
    file.parent.mkdir(parents=True)
    return file


@pytest.fixture
def project_file() -> Path:
    return config_files()[1]


def count(edgedec: Edgedec, bundle: Path, *args: str, env: dict[str, str] | None = None) -> object:
    """Return how many tokens `generate` made."""
    outcome = edgedec("generate", "-m", bundle, "-p", "o", "--json", *args, env=env)
    assert outcome.code == 0, outcome.stderr
    tokens = outcome.json["tokens"]
    assert isinstance(tokens, list)
    return len(tokens)


@pytest.mark.thorough
def test_settings_have_a_precedence(edgedec: Edgedec, bundle: Path, user_file: Path, project_file: Path) -> None:
    environment = {"EDGEDEC_GENERATE_N_PREDICT": "4"}
    user_file.write_text("[generate]\nn-predict = 2\nctx-size = 40\n")
    assert count(edgedec, bundle) == 2
    project_file.write_text("[generate]\nn_predict = 3\n")
    assert count(edgedec, bundle) == 3
    assert count(edgedec, bundle, env=environment) == 4
    assert count(edgedec, bundle, "-n", "5", env=environment) == 5
    project_file.write_text("[generate]\nn-predict = -1\n")
    assert count(edgedec, bundle) == 40 - 2 + 1, "the user's file still gives the context"


@pytest.mark.thorough
def test_values_of_all_kinds_are_read(edgedec: Edgedec, bundle: Path, project_file: Path) -> None:
    project_file.write_text(
        f'[generate]\nmodel = "{bundle}"\ntemp = 0\nreverse-prompt = ["nothing", "😀"]\necho = true\n'
        '[chat]\nsystem = "Be kind."\nreverse-prompt = "€"\n'
    )
    assert edgedec("generate", "-p", "o").stdout == "oé€\n"
    assert edgedec("chat", "-m", bundle, "--temp", "0", stdin="o\n").stdout == "é\n"


@pytest.mark.thorough(sample=3)
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[generate]\ntmep = 0\n", "[generate] has no key 'tmep'; known: "),
        ("[generate]\nhelp = true\n", "[generate] has no key 'help'"),
        ("[generate]\nverbose = 1\n", "[generate] has no key 'verbose'"),
        ("[inspect]\nbundle = 'x'\n", "[inspect] has no key 'bundle'; known: instructions, json, program, render-chat"),
        (
            "[genrate]\ntemp = 0\n",
            "'genrate' is not a table of a command; known: quantize, export, distil, calibrate-kv, ",
        ),
        ("temp = 0\n", "'temp' is not a table of a command"),
        ("generate = 3\n", "'generate' is not a table of a command"),
        ("[generate]\ntemp = 'hot'\n", "[generate] temp: "),
        ("[generate]\nthreads = -2\n", "[generate] threads: "),
        ("[generate]\ntemp = true\n", "[generate] temp must be a string or a number, not True"),
        ("[generate]\ntemp = [1]\n", "[generate] temp must be a string or a number, not [1]"),
        ("[generate]\necho = 'yes'\n", "[generate] echo must be true or false, not 'yes'"),
        ("[generate]\nreverse-prompt = [['a']]\n", "[generate] reverse-prompt must be a string or a number, not ['a']"),
        ("[generate\n", "not valid TOML: "),
        ("\udcff", "not valid TOML: "),
    ],
)
@pytest.mark.parametrize("line", [0, 1])
def test_mistakes_name_file_and_key(edgedec: Edgedec, user_file: Path, text: str, complaint: str, line: int) -> None:
    file = config_files()[line]
    file.write_bytes(text.encode(errors="surrogateescape"))
    outcome = edgedec("doctor")
    assert outcome.code == 2
    assert outcome.stderr.startswith(f"edgedec: {file}: {complaint}")


def test_an_unknown_key_lists_the_known_ones(edgedec: Edgedec, project_file: Path) -> None:
    project_file.write_text("[plan]\nx = 1\n")
    names = (
        "advise-draft, board, cache-type-k, cache-type-v, configuration, ctx-size, decoder, device, draft, draft-max, json, "
        "kv-bits, kv-policy, memory, memory-budget, model"
    )
    more = "model-draft, plot, spec-tree, spec-type, text, tree-nodes, value-rows, verifier"
    assert f"known: {names}, {more}\n" in edgedec("doctor").stderr


def test_files_are_read_from_the_users_and_the_working_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "")
    monkeypatch.setenv("HOME", "/home/someone")
    assert config_files() == (Path("/home/someone/.config/edgedec/config.toml"), Path("edgedec.toml"))
