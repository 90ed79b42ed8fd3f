"""Test texts that fill a gap: the prompt that a model gets, what ends a text, and models without the tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer

from edgedec.quantize.synthetic.random_bundle import SHAPES, write_random_bundle
from edgedec.runtime.server.infill import FILES
from edgedec.runtime.session.session import Session
from tests.edgedec.cli.support.make_known_model import byte_tokenizer
from tests.runtime.server.support.serving import Served, serving

QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>")
CODE_LLAMA = ("▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>")
GAP = {"input_prefix": "def f(a):\n    ", "input_suffix": "\n    return b\n"}


def tokenizer(tokens: Sequence[str]) -> Tokenizer:
    """Return a tokenizer with one token per byte and further ones."""
    made = byte_tokenizer()
    made.add_special_tokens([AddedToken(token) for token in tokens])
    return made


def ids(names: Sequence[str], *parts: str) -> list[int]:
    """Return the ids of parts that are tokens of a vocabulary, or texts."""
    made = tokenizer(names)
    found: list[int] = []
    for part in parts:
        whole = made.token_to_id(part)
        found += [whole] if whole is not None else made.encode(part, add_special_tokens=False).ids
    return found


LETTERS = {str(token): 50 for token in ids((), *"abcdefghijklmnop")}  # the other ids of a random model are seldom text
DRAWN = {"temperature": 2, "seed": 3, "logit_bias": LETTERS}
OPTIONS = {"n_predict": 6, **DRAWN}


def write(path: Path, tokens: Sequence[str]) -> Path:
    write_random_bundle(path, SHAPES["demo"], "int8", tokenizer_json=tokenizer(tokens).to_str())
    return path


@pytest.fixture(scope="module")
def filling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Return a server with a model that has Qwen's tokens."""
    path = write(tmp_path_factory.mktemp("bundles") / "qwen", QWEN)
    with serving(lambda: Session.open(path, threads=1, ctx_size=256)) as server:
        yield server


def infill(server: Served, **body: Any) -> dict[str, Any]:
    response = server.post("/infill", **{**GAP, **OPTIONS, **body})
    assert response.status_code == 200, response.text
    return dict(response.json())


def continued(server: Served, prompt: list[int], **options: Any) -> dict[str, Any]:
    return dict(server.post("/completion", prompt=prompt, **{**OPTIONS, **options}).json())


def test_a_gap_is_marked(filling: Served) -> None:
    answer = infill(filling)
    assert answer["prompt"] == "<|fim_prefix|>def f(a):\n    <|fim_suffix|>\n    return b\n<|fim_middle|>"
    prompt = ids(QWEN, QWEN[0], GAP["input_prefix"], QWEN[1], GAP["input_suffix"], QWEN[2])
    expected = continued(filling, prompt)
    assert (answer["content"], answer["tokens_evaluated"]) == (expected["content"], len(prompt))
    assert len(set(answer["content"])) > 1, "the model chooses"
    assert continued(filling, prompt[1:])["content"] != answer["content"], "the text depends on all of the prompt"
    begun = infill(filling, prompt="b = ")
    assert begun["prompt"] == answer["prompt"].replace("    <|fim_suffix|>", "    b = <|fim_suffix|>")


def test_further_files_come_first(filling: Served) -> None:
    files = [{"text": "b = 1\n", "filename": "b.py", "time": 5}, {"text": "c = 2\n"}]
    response = filling.post("/infill", **GAP, **OPTIONS, input_extra=files)
    head = "<|repo_name|>myproject\n<|file_sep|>b.py\nb = 1\n<|file_sep|>tmp\nc = 2\n<|file_sep|>filename\n"
    assert response.json()["prompt"] == head + infill(filling)["prompt"]
    assert response.headers["X-Edgedec-Ignored"] == "time"


def test_the_request_of_an_editor_is_taken(filling: Served) -> None:
    """The fields are those of llama.vim."""
    limits = {"t_max_prompt_ms": 500, "t_max_predict_ms": 1000, "n_indent": 4}
    more = {"id_slot": 0, "stop": [], "cache_prompt": True, "stream": False, "response_fields": ["content"]}
    samplers = ["top_k", "top_p", "infill"]
    response = filling.post("/infill", **GAP, **OPTIONS, **limits, **more, samplers=samplers, input_extra=[])
    assert response.json() == {"content": infill(filling)["content"]}
    assert set(response.headers["X-Edgedec-Ignored"].split(", ")) == {*limits, "samplers"}
    refused = filling.post("/infill", **GAP, samplers=["top_k"])
    assert refused.json()["error"]["param"] == "samplers"
    warm = filling.post("/infill", **{**OPTIONS, "n_predict": 0}, input_prefix="", input_suffix="", prompt="", **limits)
    assert (warm.status_code, warm.json()["content"]) == (200, "")


def test_spelling_of_tokens_in_texts_is_text(filling: Served) -> None:
    answer = infill(filling, input_prefix="<|fim_middle|>", input_extra=[{"text": "</s>", "filename": "<|file_sep|>"}])
    texts = "myproject\n<|file_sep|>\n</s>filename\n<|fim_middle|>" + GAP["input_suffix"]
    assert answer["tokens_evaluated"] == len(texts) + 6, "a token for each byte, and those of the server"


@pytest.mark.parametrize("end", ["<|file_sep|>", "<|fim_pad|>", "<|repo_name|>"])
def test_tokens_of_files_end_a_text(filling: Served, end: str) -> None:
    (token,) = ids(QWEN, end)
    answer = infill(filling, logit_bias={str(token): 100})
    assert (answer["content"], answer["stop_type"], answer["tokens_predicted"]) == ("", "eos", 1)
    on = infill(filling, logit_bias={str(token): 100}, ignore_eos=True)
    assert (on["stop_type"], on["tokens_predicted"]) == ("limit", 6)
    assert continued(filling, [5, 6], logit_bias={str(token): 100})["stop_type"] == "limit"


def test_a_completion_may_have_a_suffix(filling: Served) -> None:
    body = {"max_tokens": 6, **DRAWN, "suffix": GAP["input_suffix"]}
    expected = infill(filling)["content"]
    assert filling.complete(GAP["input_prefix"], **body).json()["choices"][0]["text"] == expected
    prompt = ids(QWEN, GAP["input_prefix"])
    choices = filling.complete([prompt, prompt], n=2, **body).json()["choices"]
    assert [choices[number]["text"] for number in (0, 2)] == [expected] * 2
    chunks = filling.events("/v1/completions", prompt=GAP["input_prefix"], **body)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected
    refused = filling.complete("x", echo=True, **body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "echo")
    assert filling.complete("x", echo=True, max_tokens=1, suffix="").status_code == 200


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"input_prefix": None}, "input_prefix", "Field required"),
        ({"input_suffix": None}, "input_suffix", "Field required"),
        ({"input_prefix": 5}, "input_prefix", "string"),
        ({"prompt": ["x"]}, "prompt", "string"),
        ({"input_extra": ["x"]}, "input_extra.0", ""),
        ({"input_extra": [{"filename": "x"}]}, "input_extra.0.text", "Field required"),
        ({"input_extra": [{"text": "x", "name": "y"}]}, "name", "Unrecognized"),
        ({"input_extra": [{"text": "x"}] * (FILES + 1)}, "input_extra", ""),
        ({"lora": []}, "lora", "no adapters"),
    ],
)
def test_wrong_requests_are_refused(filling: Served, body: dict[str, Any], param: str, message: str) -> None:
    response = filling.post("/infill", **{**GAP, **OPTIONS, **body})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert message in error["message"]


def test_texts_are_never_shortened(filling: Served) -> None:
    for more in ({"input_prefix": "x" * 300}, {"input_suffix": "x" * 300}, {"input_extra": [{"text": "x" * 300}]}):
        response = filling.post("/infill", **{**GAP, **more})
        error = response.json()["error"]
        assert (response.status_code, error["type"]) == (400, "exceed_context_size_error")


@pytest.mark.thorough
def test_a_model_without_tokens_of_files(tmp_path: Path) -> None:
    path = write(tmp_path / "llama", CODE_LLAMA)
    with serving(lambda: Session.open(path, threads=1, ctx_size=256)) as server:
        plain = infill(server)
        assert plain["prompt"] == "▁<PRE>def f(a):\n    ▁<SUF>\n    return b\n▁<MID>"
        more = infill(server, input_extra=[{"text": "b = 1\n", "filename": "b.py"}])
    assert more["prompt"] == "\n\n--- snip ---\n\nb = 1\n" + plain["prompt"]


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("names", [(), QWEN[:2], (QWEN[0], "<SUF>", "<MID>")])
def test_a_model_without_the_tokens_says_so(tmp_path: Path, names: Sequence[str]) -> None:
    path = write(tmp_path / "plain", names)
    with serving(lambda: Session.open(path, threads=1, ctx_size=256)) as server:
        response = server.post("/infill", **GAP)
        error = response.json()["error"]
        assert (response.status_code, error["type"]) == (501, "not_supported_error")
        assert "Infill is not supported by this model: the model's vocabulary has no tokens" in error["message"]
        refused = server.complete("x", suffix="y").json()["error"]
        assert (refused["param"], refused["code"]) == ("suffix", "unsupported_parameter")
        assert "no tokens that mark a gap" in refused["message"]
