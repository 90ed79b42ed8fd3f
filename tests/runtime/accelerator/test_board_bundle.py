"""Test board bundles: they survive a round trip, and damaged, forged or mismatched ones are refused by name.

A forgery is signed again, as its maker would sign it, so that the check under test is reached and not only the hash.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgedec.bundle.bundle import Bundle
from edgedec.errors import BundleError, EdgedecError, UnsupportedError, UsageError
from edgedec.families import build_graph
from edgedec.hw.compiler.host import ProgramHost
from edgedec.hw.compiler.program_file import save_program
from edgedec.hw.handoff.write import write_hwh
from edgedec.hw.isa.instructions import ISA_VERSION
from edgedec.runtime.accelerator import board_manifest
from edgedec.runtime.accelerator.board_bundle import BoardBundle, open_board_bundle
from edgedec.runtime.accelerator.board_manifest import MANIFEST, encode_manifest, listed_files
from edgedec.runtime.accelerator.self_test import known_answer
from edgedec.runtime.accelerator.weights import host_weights
from edgedec.runtime.text.tokenizer import Tokenizer
from tests.runtime.accelerator.support import make_board_bundle
from tests.runtime.accelerator.support.make_board_bundle import Parts

FILES = (
    MANIFEST,
    "accelerator.bit",
    "accelerator.hwh",
    "known_answer.json",
    "program/program.json",
    "program/code.bin",
    "program/image.bin",
    "model/manifest.json",
    "model/weights.bin",
    "model/tokenizer.json",
    "model/chat_template.jinja",
)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    return make_board_bundle.make(tmp_path_factory.mktemp("parts"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """Return another model of the same shape, and so for the same accelerator."""
    return make_board_bundle.make(tmp_path_factory.mktemp("other"), seed=1)


@pytest.fixture(scope="module")
def sound_bundle(parts: Parts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return parts.write(tmp_path_factory.mktemp("with spaces") / "it's a board")


@pytest.fixture
def folder(sound_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound_bundle, tmp_path / "it's a copy"))


def sign(folder: Path, change: Callable[[dict[str, Any]], None] = lambda content: None, *, files: bool = True) -> None:
    """Write board.json again, with hashes of the present files."""
    content = json.loads((folder / MANIFEST).read_bytes())
    if files:
        content["files"] = listed_files(folder)
    change(content)
    own = {"format", "version", "sha256"}
    data = encode_manifest({key: value for key, value in content.items() if key not in own})
    for key in ("format", "version"):
        if repr(content.get(key)) != repr(json.loads(data)[key]):  # a key that the real writer would not write so
            (folder / MANIFEST).write_text(json.dumps(content))
            return
    (folder / MANIFEST).write_bytes(data)


def refusal(folder: Path) -> str:
    with pytest.raises(BundleError) as caught:
        open_board_bundle(folder)
    return str(caught.value)


def test_a_written_bundle_is_read(parts: Parts, sound_bundle: Path) -> None:
    opened = open_board_bundle(sound_bundle)
    assert isinstance(opened, BoardBundle)
    assert (opened.board, opened.config, opened.bundle) == ("kv260", parts.program.config, parts.bundle.sha256)
    assert opened.rtlil_hash == make_board_bundle.RTLIL_HASH
    assert opened.bitstream.read_bytes() == make_board_bundle.BITSTREAM
    assert opened.hwh == opened.bitstream.with_suffix(".hwh")
    assert sorted(opened.files) == sorted(FILES[1:])
    program = opened.program()
    assert (program.sha256, program.host) == (parts.program.sha256, parts.program.host)
    assert sorted(entry.name for entry in sound_bundle.parent.iterdir()) == [sound_bundle.name]


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def rough_parts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """Return a model with a rough head, whose int8 head is the embedding, or another weight."""
    return make_board_bundle.make(tmp_path_factory.mktemp("rough"), kind="int8", rough=True, tied=request.param)


def test_a_rough_head_has_its_int8_rows(rough_parts: Parts, tmp_path: Path) -> None:
    opened, facts = open_board_bundle(rough_parts.write(tmp_path / "board")), rough_parts.program.host
    assert facts.rough is not None
    assert list(opened.model.tensors) == list(dict.fromkeys([facts.embedding, facts.rough.head]))
    expected: Any = rough_parts.bundle.weight(facts.rough.head)
    assert opened.head is not None
    assert opened.head.codes.tobytes() == expected.codes.tobytes()
    assert opened.program().host == facts
    host = ProgramHost(opened.program(), opened.embedding, opened.head)
    assert host.rescoring is not None
    items = host_weights(opened.model, rough_head=True)
    assert (items["head"] > 0) == (facts.rough.head != facts.embedding)
    assert items["embedding"] == host_weights(rough_parts.bundle, rough_head=True)["embedding"] > 0
    assert opened.known_answer.tokens


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("another.weight", r"is not the model of bundle .*another\.weight' alone"),
        (7, "head is 7; compile the program again"),
    ],
)
def test_a_rough_head_without_its_rows_is_refused(rough_parts: Parts, tmp_path: Path, name: Any, message: str) -> None:
    folder = rough_parts.write(tmp_path / "board")
    manifest = folder / "program/program.json"
    content = json.loads(manifest.read_bytes())
    content["host"]["rough"]["head"] = name
    manifest.write_text(json.dumps(content))
    sign(folder)
    assert re.search(message, refusal(folder))


def test_the_model_is_enough_for_the_host(parts: Parts, sound_bundle: Path) -> None:
    opened = open_board_bundle(sound_bundle)
    assert list(opened.model.tensors) == [parts.program.host.embedding]
    assert opened.model.tokenizer_hash == parts.bundle.tokenizer_hash
    assert opened.model.chat_template == parts.bundle.chat_template
    assert (opened.model.config, opened.model.tokens) == (parts.bundle.config, parts.bundle.tokens)
    ids, at = Tokenizer.load(opened.model.tokenizer_file).encode("w7 w3"), np.arange(2, dtype=np.int32)
    whole = parts.bundle.weight(parts.program.host.embedding)
    assert np.array_equal(
        ProgramHost(opened.program(), opened.embedding).input(ids, at),
        ProgramHost(parts.program, whole).input(ids, at),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("kind", ["int8", "planes3"])
def test_other_schemes_and_no_template_are_kept(kind: str, tmp_path: Path) -> None:
    opened = open_board_bundle(make_board_bundle.make(tmp_path, kind=kind, template=None).write(tmp_path / "b"))
    assert opened.model.chat_template is None
    assert opened.model.tensors[opened.program().host.embedding].shape == (41, 36)


def test_a_bin_file_is_a_bitstream_too(parts: Parts, tmp_path: Path) -> None:
    bitstream = tmp_path / "x.bin"
    bitstream.write_bytes(b"bits")
    opened = open_board_bundle(replace(parts, bitstream=bitstream).write(tmp_path / "b"))
    assert opened.bitstream.name == "accelerator.bin"


def test_writing_again_replaces_the_bundle(parts: Parts, other: Parts, tmp_path: Path) -> None:
    parts.write(tmp_path / "b")
    other.write(tmp_path / "b", board="pynq-z2")
    assert open_board_bundle(tmp_path / "b").bundle == other.bundle.sha256
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"holds no board\.json"):
        parts.write(tmp_path / "mine")


@pytest.mark.thorough
def test_it_opens_without_amaranth(sound_bundle: Path) -> None:
    script = (
        "import sys\nfor name in ('amaranth', 'torch', 'onnxruntime'): sys.modules[name] = None\n"
        "from pathlib import Path\n"
        "from edgedec.runtime.accelerator.board_bundle import open_board_bundle\n"
        "found = open_board_bundle(Path(sys.argv[1]))\nfound.program(), found.embedding\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", script, str(sound_bundle)], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("name", FILES)
def test_each_file_is_bound(folder: Path, name: str) -> None:
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    assert name in refusal(folder)
    (folder / name).write_bytes(data[:-1])
    assert name in refusal(folder)
    (folder / name).unlink()
    assert name in refusal(folder)
    (folder / name).mkdir()
    assert name in refusal(folder)


def test_other_files_are_ignored(folder: Path) -> None:
    (folder / "notes.txt").write_text("mine")
    open_board_bundle(folder)


def test_an_absent_bundle_is_refused(tmp_path: Path, parts: Parts) -> None:
    with pytest.raises(UsageError, match="no such board bundle"):
        open_board_bundle(tmp_path / "nowhere")
    assert "is a model's bundle, not a board bundle" in refusal(parts.bundle.path)


# Mismatched pairs, opened.


@pytest.mark.parametrize("text", ["[]", "{", '{"layers": {}, "tokens": [], "logits": "x"}', '{"layers": 1}'])
def test_a_damaged_known_answer_is_refused(folder: Path, text: str) -> None:
    (folder / "known_answer.json").write_text(text)
    sign(folder)
    assert "known_answer.json: " in refusal(folder)


def test_the_known_answer_is_that_of_the_program(sound_bundle: Path) -> None:
    opened = open_board_bundle(sound_bundle)
    assert known_answer(opened.program(), opened.embedding) == opened.known_answer
    assert len(opened.known_answer.layers) == 2


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        (
            "isa_version",
            ISA_VERSION - 1,
            rf"board.json: isa_version is {ISA_VERSION - 1}, this .* is {ISA_VERSION}; build",
        ),
        (
            "rtlil_hash",
            f"{1:016x}",
            r"hwh: its RTLIL_HASH is 0123456789abcdef, rtlil_hash of board.json is 0+1:",
        ),
        ("rtlil_hash", "x", "board.json: rtlil_hash is 'x'"),
        ("isa_version", "2", "board.json: isa_version is '2'"),
    ],
)
def test_another_hardware_than_the_files_is_refused(folder: Path, key: str, value: Any, complaint: str) -> None:
    sign(folder, _set(key, value))
    assert re.search(complaint, refusal(folder))


def test_a_program_for_another_accelerator_is_refused(folder: Path, parts: Parts) -> None:
    config = replace(parts.program.config, slots=1)
    shutil.rmtree(folder / "program")
    save_program(replace(parts.program, config=config), folder / "program")
    sign(folder)
    message = refusal(folder)
    assert "program/program.json: the program is for an accelerator of configuration" in message
    assert f"{config.hash:016x}" in message


def test_a_program_of_another_model_is_refused(folder: Path, other: Parts) -> None:
    shutil.rmtree(folder / "program")
    save_program(other.program, folder / "program")
    sign(folder)
    assert "program/program.json: the program was compiled from the bundle" in refusal(folder)


def test_the_embedding_of_another_model_is_refused(folder: Path, other: Parts, tmp_path: Path) -> None:
    shutil.rmtree(folder / "model")
    shutil.copytree(other.write(tmp_path / "other") / "model", folder / "model")
    sign(folder)
    assert "model/manifest.json: is not the model of bundle" in refusal(folder)


def test_a_whole_model_is_refused(folder: Path, parts: Parts) -> None:
    shutil.rmtree(folder / "model")
    shutil.copytree(parts.bundle.path, folder / "model")
    sign(folder)
    assert "model/manifest.json: is not the model of bundle" in refusal(folder)


def _hwh(parts: Parts, rtlil_hash: int = make_board_bundle.RTLIL_HASH, **changes: Any) -> bytes:
    file = parts.hwh.with_name("changed.hwh")
    write_hwh(replace(parts.program.config, **changes), file, family="zynq-ultrascale+", rtlil_hash=rtlil_hash)
    return file.read_bytes()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda parts: _hwh(parts, slots=1), "it is of configuration"),
        (
            lambda parts: _hwh(parts, 1),
            "its RTLIL_HASH is 0000000000000001, rtlil_hash of",
        ),
        (lambda parts: parts.hwh.read_bytes().replace(b"CONFIGURATION_HASH", b"SOMETHING"), "has no parameter"),
        (lambda parts: parts.hwh.read_bytes().replace(b"edgedec:edgedec:", b"xilinx:ip:"), "it has 0 blocks edgedec"),
        (lambda parts: parts.hwh.read_bytes()[:-20], "it is damaged"),
        (lambda parts: b"", "no such file, or an empty one"),
    ],
)
def test_a_hand_off_file_of_something_else_is_refused(
    folder: Path, parts: Parts, tmp_path: Path, change: Callable[[Parts], bytes], complaint: str
) -> None:
    file = tmp_path / "top.hwh"
    file.write_bytes(change(parts))
    with pytest.raises((BundleError, UsageError), match=f"top.hwh.*{complaint}"):
        replace(parts, hwh=file).write(tmp_path / "b")
    assert not (tmp_path / "b").exists()
    if file.stat().st_size:
        shutil.copyfile(file, folder / "accelerator.hwh")
        sign(folder)
        assert "accelerator.hwh" in refusal(folder)
        assert complaint in refusal(folder)


def test_xml_that_grows_is_refused(folder: Path) -> None:
    entities = "".join(f'<!ENTITY a{n + 1} "{f"&a{n};" * 10}">' for n in range(12))
    bomb = f'<!DOCTYPE x [<!ENTITY a0 "{"x" * 100}">{entities}]><x>&a12;</x>'
    (folder / "accelerator.hwh").write_text(bomb)
    sign(folder)
    assert "accelerator.hwh" in refusal(folder)


# Mismatched pairs, written.


def test_a_mismatched_pair_is_not_written(parts: Parts, other: Parts, tmp_path: Path) -> None:
    def refused(mismatched: Parts, board: str = "kv260") -> str:
        with pytest.raises(EdgedecError) as caught:
            mismatched.write(tmp_path / "b", board=board)
        assert list(tmp_path.glob("*b*")) == []
        return str(caught.value)

    assert "was compiled from the bundle" in refused(replace(parts, bundle=other.bundle))
    host = replace(parts.program.host, bundle="")
    assert "compile this bundle" in refused(replace(parts, program=replace(parts.program, host=host)))
    host = replace(parts.program.host, vocab=40)
    assert "the program's is (40, 36)" in refused(replace(parts, program=replace(parts.program, host=host)))
    assert "no such file" in refused(replace(parts, bitstream=tmp_path / "none.bit"))
    assert ".bit or a .bin" in refused(replace(parts, bitstream=parts.hwh))
    assert "a board's name" in refused(parts, board="../../KV260")


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize(("ids", "fits"), [(1, True), (41, True), (42, False)])
def test_a_tokenizer_may_have_fewer_ids_but_not_more(tmp_path: Path, ids: int, fits: bool) -> None:
    parts = make_board_bundle.make(tmp_path, ids=ids)
    if fits:
        open_board_bundle(parts.write(tmp_path / "b"))
        return
    with pytest.raises(BundleError, match=r"tokenizer\.json: has 42 ids, the program 41 rows"):
        parts.write(tmp_path / "b")


# Forged manifests.


def _set(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content.__setitem__(key, value)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (_set("format", "edgedec-bundle"), "not a board bundle"),
        (_set("more", 1), "unknown or missing keys ['more']"),
        (lambda content: content.pop("board"), "unknown or missing keys ['board']"),
        (_set("board", 7), "board is 7"),
        (_set("board", "\x1b[2J"), "board or bundle is no name"),
        (_set("bundle", "0" * 63), "board or bundle is no name"),
        (_set("bundle", "0" * 64), "the program was compiled from"),
        (_set("configuration", "0" * 16), "its config is"),
        (_set("config", {"slots": 9}), "slots must be 1 to 8"),
        (_set("config", {"wings": 2}), "unexpected keyword"),
        (_set("files", {}), "must list one of accelerator.bit, accelerator.bin"),
        (lambda content: content["files"].pop("program/code.bin"), "must list"),
        (lambda content: content["files"].pop("accelerator.bit"), "must list"),
        (lambda content: content["files"].update({"../../etc/passwd": {}}), "which a board bundle does not have"),
        (lambda content: content["files"].update({"accelerator.hwh": 3}), "must have bytes and sha256"),
        (lambda content: content["files"]["accelerator.hwh"].update(bytes=True), "board.json says True"),
        (lambda content: content["files"]["accelerator.hwh"].update(sha256=None), "its hash does not match"),
    ],
)
def test_a_forged_manifest_is_refused(folder: Path, change: Callable[[dict[str, Any]], None], complaint: str) -> None:
    sign(folder, change)
    assert complaint in refusal(folder)


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"{" * 10_000, b"[" * 100_000, b"1" * 5000, b" " * (2 << 20)])
def test_a_file_that_is_no_manifest_is_refused(folder: Path, data: bytes) -> None:
    (folder / MANIFEST).write_bytes(data)
    assert MANIFEST in refusal(folder)


def test_another_version_is_refused(folder: Path) -> None:
    for version in (1, True, "2", 2.0):
        sign(folder, _set("version", version))
        with pytest.raises(UnsupportedError, match="board bundle version"):
            open_board_bundle(folder)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_change_of_a_byte_is_refused(
    sound_bundle: Path, tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    folder = Path(shutil.copytree(sound_bundle, tmp_path_factory.mktemp("any") / "b"))
    file = folder / data.draw(st.sampled_from(FILES))
    content = bytearray(file.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    file.write_bytes(content)
    with pytest.raises(EdgedecError, match=file.name):
        open_board_bundle(folder)


def test_an_invalid_program_json_is_refused(folder: Path) -> None:
    for text in ("{}", "[]", '{"host": 3, "config": {}}', '{"host": {"bundle": 1}, "config": []}'):
        (folder / "program/program.json").write_text(text)
        sign(folder)
        assert "program/program.json" in refusal(folder)


def test_the_model_alone_is_recognized(sound_bundle: Path) -> None:
    model = Bundle.open(sound_bundle / "model")
    with pytest.raises(BundleError, match="is a board bundle's model, which has the embedding and no other weight"):
        model.check(build_graph(model.config))


def test_the_document_lists_the_keys(project_root: Path) -> None:
    text = (project_root / "docs" / "building.md").read_text("utf-8")
    for name in (*board_manifest._KEYS, *FILES):
        assert f"`{name}`" in text, name
