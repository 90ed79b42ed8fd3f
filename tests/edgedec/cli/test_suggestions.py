"""Test that a misspelt name of any kind gets a suggestion, in every command that takes it."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path

import pytest

import edgedec
from edgedec import plugins
from edgedec.bundle.missing import nothing_at, spelling_of_path
from edgedec.errors import UsageError
from edgedec.quantize.synthetic.random_bundle import write_random_bundle
from tests.edgedec.cli.conftest import Edgedec


@pytest.fixture(autouse=True)
def files(elsewhere: None) -> None:
    """Write what the paths below nearly name."""
    Path("story.txt").write_text("x")
    Path(".hidden.txt").write_text("x")
    Path("checkpoint").mkdir()
    Path("my-model.edgedec").mkdir()
    Path("build").mkdir()
    Path("build/story.edgedec").mkdir()


RUNNING = ("generate -p x", "chat", "plan")
CASES = [
    *((f"{command} {words}", meant) for command in RUNNING for words, meant in [
        ("demo-in", "demo-int8"),
        ("-m demo-hybird", "demo-hybrid"),
        ("my-modle.edgedec", "my-model.edgedec"),
        ("-m biuld/story.edgedec", "build/story.edgedec"),
        ("demo --device cup", "cpu"),
        ("demo --device intepreter", "interpreter"),
        ("demo --spec-type ngrm", "ngram"),
        ("demo --spec-type ngram --spec-tree chian", "chain"),
        ("demo --spec-type ngram --verifier mach", "match"),
        ("demo --decoder swich", "switch"),
        ("demo --kv-policy ful", "full"),
        ("demo --spec-type model -md demo-drft", "demo-draft"),
        ("demo --device sim --board kv26", "kv260"),
        ("demo --device sim --configuration smal", "small"),
        ("demo --device sim --configuration small,slos=3", "slots"),
        ("demo --device sim --memory dr", "ddr"),
        ("demo -ctk q80 -ctv q80", "q8_0"),
    ]),
    ("bench demo --device cup", "cpu"),
    ("bench --shape dmo", "demo"),
    ("bench --shape demo --method ternry", "ternary"),
    ("quantize chekpoint -o o", "checkpoint"),
    ("quantize checkpoint -o o --method ternry", "ternary"),
    ("quantize checkpoint -o o --tokenizer stori.txt", "story.txt"),
    ("export demo -o x --format onx", "onnx"),
    ("export demo -o x --trits TQ20", "TQ2_0"),
    ("export demo-drat -o x", "demo-draft"),
    ("calibrate-kv -m demo -o x --kind double-sparcity", "double-sparsity"),
    ("eval -m demo --text stori.txt", "story.txt"),
    ("eval -m demo --choices stori.txt", "story.txt"),
    ("batch stori.txt -m demo -o out", "story.txt"),
    ("generate demo -f stori.txt", "story.txt"),
    ("generate demo -p x --json-schema stroy.txt", "story.txt"),
    ("generate demo -p x --grammar stroy.txt", "story.txt"),
    ("chat demo --chat-template chatm", "chatml"),
    ("chat demo --chat-template-file stori.txt", "story.txt"),
    ("chat demo -sysf stori.txt", "story.txt"),
    ("inspect my-modle.edgedec", "my-model.edgedec"),
    ("deploy my-modle.edgedec --host x", "my-model.edgedec"),
    ("boards show ulx3", "ulx3s-85f"),
    ("build-bitstream -m demo --board kv26 -o x", "kv260"),
    ("build-bitstream -m demo --board kv260 -o x --flow vivad", "vivado"),
    ("build-bitstream -m demo --board kv260 -o x --configuration bord", "board"),
    ("build-bitstream -m demo --board kv260 --explore --pool locl", "local"),
    ("simulate --bench token", "tokens"),
    ("simulate -m demo --memory dr", "ddr"),
    ("completion bsh", "bash"),
]  # fmt: skip


@pytest.mark.thorough(sample=2)
@pytest.mark.parametrize(("words", "meant"), CASES)
def test_a_misspelt_name_gets_a_suggestion(edgedec: Edgedec, words: str, meant: str) -> None:
    outcome = edgedec(*words.split())
    assert (outcome.code, outcome.stdout) == (2, "")
    assert f"did you mean {meant!r}?" in outcome.stderr


PACKAGES = [
    module.name
    for module in pkgutil.walk_packages(edgedec.__path__, "edgedec.")
    if module.ispkg and module.name in (
        "edgedec.kv.policies", "edgedec.runtime.drafters", "edgedec.runtime.trees", "edgedec.runtime.verifiers",
        "edgedec.runtime.targets", "edgedec.sim.verify.suites", "edgedec.workers",
    )
]  # fmt: skip


@pytest.mark.parametrize("package", PACKAGES)
def test_a_misspelt_plug_in_gets_a_suggestion(package: str) -> None:
    import_module(package)
    for name in plugins.names(package):
        typed = name[:-1] + "x" if len(name) > 4 else name + "x"
        with pytest.raises(UsageError, match=r"did you mean '\w+'\?$"):
            plugins.load(package, typed)


@pytest.mark.parametrize(
    ("path", "next_step"),
    [
        ("stori.txt", "did you mean 'story.txt'?"),
        ("build/stori.edgedec", "did you mean 'build/story.edgedec'?"),
        ("story", "did you mean 'story.txt'?"),
        ("s.txt", "check the spelling of the path"),
        ("a/b/c", "check the spelling of the path"),
        ("hidden.txt", "check the spelling of the path"),
        (".hiden.txt", "did you mean '.hidden.txt'?"),
        ("", "check the spelling of the path"),
    ],
)
def test_a_path_that_leads_nowhere(path: str, next_step: str) -> None:
    assert spelling_of_path(Path(path)) == next_step


def test_a_bundle_that_leads_nowhere_is_made_or_meant() -> None:
    assert nothing_at(Path("my-modle.edgedec"), "bundle").endswith("no such bundle; did you mean 'my-model.edgedec'?")
    assert "make one with: edgedec quantize" in nothing_at(Path("other"), "bundle")


def test_names_of_python_functions_get_suggestions(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'ternary'"):
        write_random_bundle(tmp_path / "x", "demo", "ternry")
