"""Test exit codes, messages, and what every command has in common."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from edgedec import __version__
from edgedec.cli import app as app_module
from edgedec.errors import UsageError
from edgedec.plugins import names
from edgedec.runtime.decoders._plugin import DECODERS
from edgedec.runtime.planning import planning
from edgedec.runtime.planning.speculation import DRAFTERS, POLICIES, VERIFIERS, SpecConfig
from edgedec.runtime.run_settings import RunSettings
from edgedec.runtime.sampling.sampling import SamplingConfig
from edgedec.runtime.session.session import Session
from tests.edgedec.cli.conftest import Edgedec

COMMANDS = typer.main.get_command(app_module.app).commands  # type: ignore[attr-defined]
BUNDLE = "BUNDLE"
NAMES = {
    "quantize",
    "distil",
    "inspect",
    "plan",
    "generate",
    "chat",
    "bench",
    "eval",
    "simulate",
    "doctor",
    "list",
    "remove",
    "boards",
}
NAMES |= {"deploy", "export", "build-bitstream", "completion", "serve", "batch", "calibrate-kv", "borrow"}


def test_help_names_every_command(edgedec: Edgedec) -> None:
    outcome = edgedec("--help")
    assert outcome.code == 0
    assert set(COMMANDS) == NAMES
    assert all(f"\n  {name} " in outcome.stdout for name in NAMES)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_command_has_help(edgedec: Edgedec, name: str) -> None:
    outcome = edgedec(name, "-h")
    assert outcome.code == 0
    assert outcome.stdout.startswith(f"Usage: edgedec {name}")


def test_version(edgedec: Edgedec) -> None:
    assert edgedec("--version").stdout == f"edgedec {__version__}\n"


def test_options_are_named_after_their_long_spelling() -> None:
    """Environment variables and configuration keys derive from the parameter's name."""
    for command in COMMANDS.values():
        for option in command.params:
            if option.param_type_name == "option":
                assert f"--{option.name.replace('_', '-')}" in option.opts, f"{command.name}: {option.opts}"


def test_every_command_is_documented(project_root: Path) -> None:
    text = (project_root / "docs" / "command-line.md").read_text("utf-8")
    for command in COMMANDS.values():
        assert f"edgedec {command.name} " in text


@pytest.mark.parametrize("name", ["generate", "chat"])
def test_defaults_of_sampling_are_the_python_api_s(name: str) -> None:
    defaults = {option.name: option.default for option in COMMANDS[name].params}
    config = SamplingConfig()
    assert defaults["temp"] == config.temperature
    for field in ("top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n", "seed"):
        assert defaults[field] == getattr(config, field)


SPECULATING = ("generate", "chat", "plan")


@pytest.mark.parametrize("name", SPECULATING)
def test_defaults_and_help_of_speculation_are_the_python_api_s(name: str) -> None:
    options = {option.name: option for option in COMMANDS[name].params}
    fields = {"spec_type": "drafter", "spec_tree": "policy", "model_draft": "draft"}
    for option, field in (fields | {name: name for name in ("draft_max", "tree_nodes", "verifier", "decoder")}).items():
        assert options[option].default == getattr(SpecConfig, field)
    plugins = {"spec_type": DRAFTERS, "spec_tree": POLICIES, "verifier": VERIFIERS, "decoder": DECODERS}
    for option, package in plugins.items():
        assert all(plugin in options[option].help for plugin in names(package)), "the help lists them all"


SPEC = {
    "--spec-type": "auto",
    "--draft-max": "5",
    "--spec-tree": "delayed",
    "--tree-nodes": "9",
    "--verifier": "traversal",
}


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize("name", SPECULATING)
@pytest.mark.parametrize("by", ["flag", "environment"])
def test_options_of_speculation_reach_the_session(
    edgedec: Edgedec, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, by: str
) -> None:
    drafts = [bundle, tmp_path / "other draft"]  # folders whose names have spaces
    if by == "environment":  # an option that may be repeated takes words
        drafts = [tmp_path / "draft", tmp_path / "other-draft"]
        drafts[0].symlink_to(bundle)
    configs: list[SpecConfig] = []

    def take(model: object, settings: RunSettings, **options: object) -> None:
        assert settings.spec is not None
        configs.append(settings.spec)
        raise UsageError("enough")

    monkeypatch.setattr(Session, "load", take)
    monkeypatch.setattr(planning, "make_plan", take)
    words = [name, "-m", str(bundle), *(["-p", "hi"] if name == "generate" else [])]
    if by == "flag":
        words += [word for draft in drafts for word in ("-md", str(draft))]
        outcome = edgedec(*words, *(word for pair in SPEC.items() for word in pair))
    else:
        long, values = {"-md": "--model-draft"}, {**SPEC, "-md": " ".join(map(str, drafts))}
        keys = {option: long.get(option, option).strip("-").replace("-", "_").upper() for option in values}
        outcome = edgedec(*words, env={f"EDGEDEC_{name.upper()}_{keys[option]}": values[option] for option in values})
    assert outcome.stderr == "edgedec: enough\n"
    spec = SpecConfig(
        drafter="auto", policy="delayed", draft=tuple(drafts), draft_max=5, tree_nodes=9, verifier="traversal"
    )
    assert configs == [spec]


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("-m demo --spec-type model", ["demo-draft", "demo"]),
        ("-m demo-int8 --spec-type auto", ["demo-draft", "demo-int8"]),
        ("-m demo --spec-type ngram", ["demo"]),
        ("-m demo", ["demo"]),
        ("-m BUNDLE --spec-type auto", []),
        ("-m BUNDLE --spec-type model -md demo-draft", ["demo-draft"]),
        ("-m demo --spec-type model --model-draft BUNDLE", ["demo"]),
    ],
)
def test_the_embedded_draft_is_used_with_embedded_targets_only(
    edgedec: Edgedec, bundle: Path, monkeypatch: pytest.MonkeyPatch, words: str, expected: list[str]
) -> None:
    names: list[str] = []

    def embedded(name: str, **options: object) -> Path:
        names.append(name)
        return bundle

    monkeypatch.setattr("edgedec.demo.bundle_path", embedded)
    outcome = edgedec("plan", *(str(bundle) if word == BUNDLE else word for word in words.split()), "--json")
    assert names == expected
    drafts = "demo-draft" in expected or "model" in words
    assert ("draft_weights" in outcome.json["items"]) == drafts  # type: ignore[operator]


def test_help_does_not_wait_for_heavy_imports() -> None:
    code = "import sys; sys.argv = ['edgedec', '--help']\nfrom edgedec.cli.app import main\n"
    code += "try: main()\nfinally: print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "edgedec.cli.quantize" in modules, "the help shows all commands"
    assert not {"numpy", "onnxruntime", "onnx", "tokenizers", "jinja2"} & set(modules)


@pytest.mark.thorough
def test_module_is_the_command() -> None:
    command = [sys.executable, "-m", "edgedec", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"edgedec {__version__}\n"


DRAFTER_NAMES, POLICY_NAMES = (", ".join(names(package)) for package in (DRAFTERS, POLICIES))


@pytest.mark.thorough(sample=10)
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("generate -m nowhere -p hi", 2, "edgedec: nowhere: no such bundle; make one with: edgedec quantize"),
        ("generate -m . -p hi", 1, "edgedec: .: holds no manifest.json"),
        ("generate -m BUNDLE", 2, "write the prompt either with -p TEXT or with -f FILE"),
        ("generate -m BUNDLE -p hi -f x", 2, "write the prompt either with -p TEXT or with -f FILE"),
        ("generate -m BUNDLE -f missing", 2, "--file missing: there is no such file"),
        ("generate -m BUNDLE -f .", 2, "--file .: cannot be read: Is a directory"),
        ("generate -m BUNDLE -f empty", 2, "--file empty: the file is empty"),
        ("generate -m BUNDLE -f latin", 2, "--file latin: not UTF-8 at byte 1"),
        ("generate -m BUNDLE -f blank", 2, "the prompt is empty; give some text with -p"),
        ("generate -m BUNDLE -p hi --temp -1", 2, "--temp must be >= 0, not -1.0"),
        ("generate -m BUNDLE -p hi --threads -1", 2, "Invalid value for '-t' / '--threads'"),
        ("generate -m BUNDLE -p hi --threads 257", 2, "Invalid value for '-t' / '--threads'"),
        ("generate -m BUNDLE -p hi -n -2", 2, "Invalid value for '-n' / '--n-predict'"),
        ("chat -m BUNDLE -n -2", 2, "Invalid value for '-n' / '--n-predict'"),
        (
            "generate -m BUNDLE -p hi --device gpy",
            2,
            "there is no device 'gpy'; known: cpu, cuda, webgpu, float_reference, gpu, devmem, interpreter, pynq,",
        ),
        ("generate -m BUNDLE -p hi -c 5000", 2, "--ctx-size must be 1 to 4096"),
        ("generate -m BUNDLE -p hello -c 4", 1, "the prompt has 6 tokens, the context holds 4"),
        ("generate -m BUNDLE -p hi --memory-budget lots", 2, "'lots' is not a size"),
        ("generate -m BUNDLE -p hi --memory-budget 1MiB", 4, "the memory budget is 1.0 MiB"),
        ("generate -m BUNDLE -p hi --spec-type guess", 2, f"--spec-type must be one of {DRAFTER_NAMES}, not 'guess'"),
        ("chat -m BUNDLE --spec-type guess", 2, f"--spec-type must be one of {DRAFTER_NAMES}, not 'guess'"),
        ("plan -m BUNDLE --spec-type _text", 2, f"--spec-type must be one of {DRAFTER_NAMES}, not '_text'"),
        ("chat -m BUNDLE --spec-tree bush", 2, f"--spec-tree must be one of {POLICY_NAMES}, not 'bush'"),
        ("plan -m BUNDLE --draft-max 64", 2, "--draft-max must be 1 to 63, not 64"),
        ("generate -m BUNDLE -p hi --draft-max x", 2, "Invalid value for '--draft-max'"),
        ("generate -m BUNDLE -p hi --tree-nodes 1", 2, "--tree-nodes must be 2 to 64, or 0, not 1"),
        ("generate -m BUNDLE -p hi -md BUNDLE", 2, "-md is for --spec-type model or auto, not none"),
        (
            "generate -m BUNDLE -p hi --spec-type model",
            2,
            "--spec-type model needs a draft model: give its bundle with -md",
        ),
        ("chat -m BUNDLE --decoder swich", 2, "not 'swich'; did you mean 'switch'?"),
        (
            "generate -m BUNDLE -p hi --decoder switch",
            2,
            "--decoder switch needs a draft model: give its bundle with -md",
        ),
        ("generate -m BUNDLE -p hi --decoder switch -md STRANGER", 2, "both must be made from checkpoints with one"),
        (
            "plan -m BUNDLE --decoder switch --spec-type ngram",
            2,
            "--decoder switch takes --spec-type model, not ngram; leave",
        ),
        (
            "chat -m BUNDLE -md BUNDLE --decoder switch --verifier typical",
            2,
            "--decoder switch makes no guesses, so --verifier typical has no use; leave it out",
        ),
        ("chat -m BUNDLE -md BUNDLE --decoder switch:window=0", 2, "--decoder switch: window must be 1 to 4096"),
        ("generate -m BUNDLE -p hi --spec-type model -md nowhere", 2, "edgedec: nowhere: no such bundle"),
        ("generate -m BUNDLE -p hi --spec-type model -md .", 1, "edgedec: .: holds no manifest.json"),
        ("generate -m BUNDLE -p hi --spec-type model -md STRANGER", 2, "both must be made from checkpoints with one"),
        ("chat -m BUNDLE --spec-type auto -md STRANGER", 2, "both must be made from checkpoints with one tokenizer"),
        ("plan -m STRANGER --spec-type model -md BUNDLE", 2, "both must be made from checkpoints with one tokenizer"),
        ("generate -m BUNDLE -p hi --spec-type ngram --memory-budget 1MiB", 4, "the memory budget is 1.0 MiB"),
        (
            "chat -m BUNDLE --spec-type model -md BUNDLE --memory-budget 3MiB",
            4,
            "the memory budget is 3.0 MiB",
        ),
        ("generate -m BUNDLE -p hi --device webgpu", 3, "device webgpu: the plug-in is missing; run: "),
        ("generate -p hi", 2, "there is no model; give its bundle with -m, such as -m demo"),
        (
            "generate --nonsense",
            2,
            "edgedec generate has no option --nonsense; edgedec generate --help lists its options",
        ),
        ("nonsense", 2, "edgedec has no command 'nonsense'; known: quantize, "),
        ("chat -m nowhere", 2, "nowhere: no such bundle"),
        ("inspect nowhere", 2, "nowhere: no such bundle"),
        ("plan -m nowhere", 2, "nowhere: no such bundle"),
        ("eval -m BUNDLE --text missing", 2, "--text missing: there is no such file"),
        ("eval -m BUNDLE --text empty", 2, "--text empty: the file is empty"),
        ("eval -m BUNDLE --text latin -c 1", 2, "--text latin: not UTF-8"),
        ("eval -m BUNDLE --text blank -c 1", 2, "--ctx-size must be at least 2"),
        ("bench", 2, "use either --shape NAME or -m BUNDLE"),
        ("bench --shape demo -m BUNDLE", 2, "use either --shape NAME or -m BUNDLE"),
        ("bench -m BUNDLE --method ternary", 2, "--method is for the random weights of --shape"),
        ("bench --shape huge", 2, "there is no shape 'huge'; known: bitnet-0.73b"),
        ("bench --shape demo --spec-type ngram", 2, "--spec-type needs a model that writes text: give it with -m"),
        ("bench -m BUNDLE --verifier block", 2, "--verifier block is for guesses: give a drafter with --spec-type"),
        (
            "bench -m BUNDLE --spec-type ngram --verifier block --spec-tree static",
            2,
            "--verifier block needs --spec-tree chain, not static",
        ),
        ("bench --shape demo --method float", 2, "method must be one of ternary, int4, int8, not 'float'"),
        ("quantize missing -o out", 2, "missing: no such checkpoint; check the spelling of the path"),
        ("quantize . -o out", 1, "config.json"),
        ("quantize . -o out --method int5", 2, "method must be one of int8, int4, ternary, float"),
        ("quantize . -o out --planes 2", 2, "--planes 2 is for --method ternary, not int8; write --method ternary"),
        ("quantize . -o out --method ternary --planes 4", 2, "--planes must be 1, 2 or 3 with --method ternary, not 4"),
        ("quantize BUNDLE -o out", 2, "is a bundle; it is quantized already, run it: edgedec generate -m "),
        ("quantize weights/pointer.safetensors -o out", 1, "git -C weights lfs pull"),
        ("quantize empty -o out", 1, "empty: is an empty file; copy or download it again"),
        ("generate -m model.bin -p hi", 1, "edgedec quantize model.bin -o model.edgedec"),
        ("generate -m blank -p hi", 1, "blank: is a text file; make a bundle with: edgedec quantize CHECKPOINT"),
        ("plan -m BUNDLE --spec-type model -md model.bin", 1, "edgedec quantize model.bin -o model.edgedec"),
        ("inspect model.bin", 1, "model.bin: is a GGUF file; make a bundle of it first: edgedec quantize model.bin"),
        ("quantize . -o out --method tenary", 2, "did you mean 'ternary'?"),
        ("plan -m BUNDLE --spec-type ngran", 2, "not 'ngran'; did you mean 'ngram'?"),
        ("plan -m BUNDLE --spec-tree dynamik", 2, "not 'dynamik'; did you mean 'dynamic'?"),
        ("plan -m BUNDLE --device webgup", 2, "did you mean 'webgpu'?"),
        ("plan -m BUNDLE --device sim --board kv26", 2, "did you mean 'kv260'?"),
        ("plan -m BUNDLE --device sim --memory dr", 2, "did you mean 'ddr'?"),
        ("plan -m BUNDLE --device sim --configuration smal", 2, "did you mean 'small'?"),
        ("plan -m BUNDLE --device sim --configuration small,slot=4", 2, "did you mean 'slots'?"),
        ("boards show ulx3s", 2, "did you mean 'ulx3s-85f'?"),
        ("export BUNDLE -o x --format safetensor", 2, "did you mean 'safetensors'?"),
        ("bench --shape bitnet-0.7b", 2, "did you mean 'bitnet-0.73b'?"),
        ("plan -m BUNDLE -c 1", 2, "a context of 1 token has no room for a prompt and an answer"),
        (
            "plan -m BUNDLE --memory-budget 32",
            2,
            "--memory-budget 32 is 32 bytes, which no model fits into; did you mean 32MiB?",
        ),
        ("plan -m BUNDLE --memory-budget 1.5", 2, "did you mean 1.5MiB?"),
        ("generate -m BUNDLE -p hi --memory-budget 32B", 4, "the memory budget is 32 B"),
        ("quantize . -o out --calibration none", 2, "--calibration is for ternary planes"),
    ],
)
def test_failures_have_a_code_and_a_message(
    edgedec: Edgedec,
    bundle: Path,
    stranger: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    code: int,
    message: str,
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime_ep_webgpu", None)  # makes the import fail
    Path("empty").write_bytes(b"")
    Path("blank").write_bytes(b"\n")
    Path("model.bin").write_bytes(b"GGUF\3\0\0\0" + bytes(16))
    Path("weights").mkdir()
    Path("weights/pointer.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    Path("latin").write_bytes("né".encode("latin-1"))
    paths = {BUNDLE: str(bundle), "STRANGER": str(stranger)}
    outcome = edgedec(*(paths.get(word, word) for word in words.split()))
    assert outcome.code == code
    assert message in outcome.stderr
    assert outcome.stdout == ""


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(
    ("words", "environment", "message"),
    [
        ("plan -m BUNDLE", {"EDGEDEC_PLAN_DRAFT_MAX": "99"}, "not 99 (--draft-max is set by the environment variable"),
        ("plan -m BUNDLE", {"EDGEDEC_PLAN_DRAFT_MAX": "x"}, "edgedec: environment variable EDGEDEC_PLAN_DRAFT_MAX: "),
        ("plan -m BUNDLE", {"EDGEDEC_PLAN_JSON": "maybe"}, "edgedec: environment variable EDGEDEC_PLAN_JSON: "),
        ("plan -m BUNDLE", {"EDGEDEC_PLAN_CTX_SIZE": "1"}, "edgedec: environment variable EDGEDEC_PLAN_CTX_SIZE: "),
        (
            "plan -m BUNDLE",
            {"EDGEDEC_PLAN_MEMORY_BUDGET": "lots"},
            "(--memory-budget is set by the environment variable EDGEDEC_PLAN_MEMORY_BUDGET)",
        ),
        ("generate -m BUNDLE -p o", {"EDGEDEC_GENERATE_TEMP": "-1"}, "variable EDGEDEC_GENERATE_TEMP)"),
        ("boards list", {"EDGEDEC_BOARDS_LIST_JSON": "maybe"}, "environment variable EDGEDEC_BOARDS_LIST_JSON: "),
        ("plan -m BUNDLE", {"EDGEDEC_PLAN_DEVICES": "cpu"}, "did you mean 'EDGEDEC_PLAN_DEVICE'?"),
        ("plan -m BUNDLE", {"EDGEDEC_KERNELS": "avx2"}, "did you mean 'EDGEDEC_KERNEL'?"),
        ("plan -m BUNDLE", {"EDGEDEC_VERSION": "1"}, "environment variable EDGEDEC_VERSION means nothing to edgedec"),
    ],
)
def test_a_wrong_variable_is_named(
    edgedec: Edgedec, bundle: Path, words: str, environment: dict[str, str], message: str
) -> None:
    outcome = edgedec(*(str(bundle) if word == BUNDLE else word for word in words.split()), env=environment)
    assert (outcome.code, outcome.stdout) == (2, "")
    assert message in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1


def test_a_variable_is_not_blamed_for_a_flag(edgedec: Edgedec, bundle: Path) -> None:
    environment = {"EDGEDEC_PLAN_DRAFT_MAX": "4", "EDGEDEC_PLAN_TREE_NODES": "4"}
    outcome = edgedec("plan", "-m", bundle, "--draft-max", "99", env=environment)
    assert outcome.stderr == "edgedec: --draft-max must be 1 to 63, not 99\n"


@pytest.mark.thorough
@pytest.mark.parametrize("command", [("generate", "-p", "Once"), ("plan",), ("chat",)], ids=lambda words: str(words[0]))
def test_the_simulation_without_its_packages_names_the_missing_one(bundle: Path, command: tuple[str, ...]) -> None:
    """Run in a process of its own, because a module that is imported anew is not the module that later tests use."""
    without = "import sys; sys.modules['amaranth'] = None; from edgedec.cli.app import main; main()"
    words = [sys.executable, "-c", without, *command, "-m", str(bundle), "--device", "sim"]
    process = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert (process.returncode, process.stdout) == (3, "")
    assert process.stderr.startswith("edgedec: --device sim needs amaranth, which is not installed; run: ")


def test_a_damaged_bundle_names_the_file(edgedec: Edgedec, bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "damaged"
    copy.mkdir()
    for file in bundle.iterdir():
        data = bytearray(file.read_bytes())
        if file.name == "weights.bin":
            data[100] ^= 1
        (copy / file.name).write_bytes(data)
    for command in (["generate", "-p", "hi", "-m"], ["inspect"], ["plan", "-m"]):
        outcome = edgedec(*command, copy)
        assert outcome.code == 1
        assert f"edgedec: {copy / 'weights.bin'}: its hash does not match the manifest" in outcome.stderr


CRASH = """
import edgedec.cli.app as app, edgedec.cli.run_options as options
options.budget_bytes = lambda text: 1 / 0
app.main()
"""


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("debug", ["", "1"])
def test_an_unexpected_error_is_one_line_unless_debugging_is_on(debug: str) -> None:
    command = [sys.executable, "-c", CRASH, "plan", "-m", "x"]
    process = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"EDGEDEC_DEBUG": debug})
    assert process.returncode == 1
    assert ("Traceback" in process.stderr) == bool(debug)
    assert ("edgedec: unexpected ZeroDivisionError: division by zero" in process.stderr) == (not debug)
    assert ("set EDGEDEC_DEBUG=1" in process.stderr) == (not debug)


def test_ctrl_c_is_130(edgedec: Edgedec, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(text: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("edgedec.cli.console.write", interrupt)
    outcome = edgedec("generate", "-m", bundle, "-p", "o", "--temp", "0")
    assert (outcome.code, outcome.stdout) == (130, "")


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_other_signals_end_a_command_as_well(
    edgedec: Edgedec, bundle: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    """Check that open resources are closed, and that a second signal does not disturb that."""
    closed = []

    def interrupt(text: str) -> None:
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(signal.SIGTERM)
            closed.append(text)

    monkeypatch.setattr("edgedec.cli.console.write", interrupt)
    before = {name: signal.signal(name, signal.SIG_DFL) for name in (signal.SIGTERM, signal.SIGHUP)}
    try:
        outcome = edgedec("generate", "-m", bundle, "-p", "o", "--temp", "0")
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
    assert (outcome.code, outcome.stdout, len(closed)) == (code, "", 1)


def test_a_command_without_a_signal_restores_the_handlers(edgedec: Edgedec, bundle: Path) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        assert edgedec("generate", "-m", bundle, "-p", "o", "--temp", "0", "-n", "1").code == 0
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


TWO_SIGNALS = """
import atexit, signal, sys
import edgedec.cli.app as app, edgedec.cli.run_options as options
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
first, second = (signal.Signals[name] for name in sys.argv.pop().split(","))
options.budget_bytes = lambda text: signal.raise_signal(first)
atexit.register(signal.raise_signal, second)
app.main()
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("signals", "code"), [("SIGHUP,SIGTERM", 129), ("SIGTERM,SIGHUP", 143), ("SIGTERM,SIGTERM", 143)]
)
def test_a_second_signal_while_python_ends_changes_nothing(signals: str, code: int) -> None:
    """Model a terminal that is closed and then a session manager: the exit code is that of the first signal."""
    command = [sys.executable, "-c", TWO_SIGNALS, "plan", "-m", "x", signals]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout, process.stderr) == (code, "", "")


def test_a_signal_that_nohup_ignores_stays_ignored(
    edgedec: Edgedec, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgedec.cli.console.write", lambda text: signal.raise_signal(signal.SIGHUP))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert edgedec("generate", "-m", bundle, "-p", "o", "--temp", "0", "-n", "3").code == 0
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.thorough
def test_verbose_logs_to_stderr(edgedec: Edgedec, checkpoint: Path) -> None:
    import logging

    logger = logging.getLogger("edgedec.test")
    for flags, lines in ([], 0), (["-v"], 1), (["-vv"], 2):
        edgedec("doctor", *flags)
        assert sum(logger.isEnabledFor(level) for level in (logging.INFO, logging.DEBUG)) == lines
