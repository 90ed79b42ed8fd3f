"""Test the endpoints that tell about the model, and those that convert texts and ids."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import jsonschema
import pytest

from edgedec import demo
from edgedec.runtime.server.app import create_app
from edgedec.runtime.server.service import ModelService
from edgedec.runtime.server.settings import ServerSettings
from edgedec.runtime.session.session import Session
from tests.runtime.server.support.fake_session import ScriptedSession
from tests.runtime.server.support.serving import Served, serving


@pytest.mark.thorough
def test_health_is_503_while_the_model_is_loaded() -> None:
    may_load = threading.Event()

    def open_session() -> Session:
        assert may_load.wait(20)
        return ScriptedSession().real

    with serving(open_session, await_load=False) as server:
        response = server.client.get("/health")
        assert (response.status_code, response.json()["error"]["code"]) == (503, "model_loading")
        assert server.chat(max_tokens=1).status_code == 503
        assert server.client.get("/props").status_code == 503
        assert "edgedec:model_loaded 0" in server.client.get("/metrics").text
        may_load.set()
        server.service.loaded.result(20)
        response = server.client.get("/health")
        assert (response.status_code, response.json()) == (200, {"status": "ok"})
        assert server.chat(max_tokens=1).status_code == 200


def test_models(served: Served) -> None:
    (model,) = served.client.get("/v1/models").json()["data"]
    assert (model["id"], model["object"]) == ("a model", "model")
    assert served.client.get("/v1/models/a%20model").json() == model
    response = served.client.get("/v1/models/gpt-5")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
    assert served.chat(max_tokens=1, model="gpt-5").json()["model"] == "a model"


def test_tokens_and_texts(served: Served, session: Session) -> None:
    ids = session.tokenizer.encode("Once upon a time, 猫", add_special=False).tolist()
    assert served.post("/tokenize", content="Once upon a time, 猫").json() == {"tokens": ids}
    special = session.encode("Once upon a time, 猫").tolist()
    assert served.post("/tokenize", content="Once upon a time, 猫", add_special=True).json() == {"tokens": special}
    pieces = served.post("/tokenize", content="Once upon a time, 猫", with_pieces=True).json()["tokens"]
    assert pieces == [{"id": token, "piece": session.tokenizer.token_of(token)} for token in ids]
    text = "Once upon a time, 猫"
    assert served.post("/detokenize", tokens=ids).json() == {"content": text, "prompt": text}
    assert served.post("/detokenize", tokens=[]).json() == {"content": "", "prompt": ""}
    assert served.post("/detokenize", tokens=[2048]).status_code == 400
    spelled = served.post("/tokenize", content="a</s>", parse_special=False).json()["tokens"]
    assert spelled == session.tokenizer.encode("a</s>", add_special=False, control_tokens=False).tolist()
    assert spelled != session.tokenizer.encode("a</s>", add_special=False).tolist()


def test_the_tokenizer_under_the_names_of_vllm(served: Served, session: Session) -> None:
    plain = session.tokenizer.encode("Once", add_special=False).tolist()
    size = {"max_model_len": 512}
    assert served.post("/tokenize", prompt="Once", add_special_tokens=False).json() == {
        "tokens": plain,
        "count": len(plain),
        **size,
    }
    assert served.post("/tokenize", prompt="Once").json() == {"tokens": [0, *plain], "count": len(plain) + 1, **size}
    assert served.post("/tokenize", content="Once", add_special_tokens=True).json() == {"tokens": [0, *plain]}
    info = served.client.get("/tokenizer_info").json()
    assert (info["bos_token"], info["eos_token"], info["vocab_size"]) == ("<s>", "</s>", 2048)
    assert info["chat_template"] == session.bundle.chat_template
    for body in (
        {},
        {"content": "a", "prompt": "a"},
        {"prompt": "a", "add_special": True, "add_special_tokens": False},
    ):
        assert served.post("/tokenize", **body).status_code == 400, body


def test_the_template(served: Served, session: Session) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    rendered = session.render_chat(messages).removeprefix("<s>")  # a plain prompt gets this token
    assert served.post("/apply-template", messages=messages).json() == {"prompt": rendered}
    system = {"role": "system", "content": "Be kind."}
    whole = rendered.replace("Hello", "Be kind.\n\nHello")
    assert served.post("/apply-template", messages=[system, *messages]).json() == {"prompt": whole}


@pytest.mark.thorough
def test_a_refusal_of_the_template_is_passed_on() -> None:
    template = "{{ raise_exception('no such talk') }}"
    with serving(lambda: ScriptedSession().real, chat_template=template) as server:
        response = server.post("/apply-template", messages=[{"role": "user", "content": "x"}])
    assert "no such talk" in response.json()["error"]["message"]
    assert (response.status_code, response.json()["error"]["code"]) == (400, "chat_template_refused")


def test_properties_and_slots(served: Served) -> None:
    props = served.client.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 512
    assert props["default_generation_settings"]["params"]["temperature"] == 0.8
    assert (props["total_slots"], props["model_alias"]) == (3, "a model")
    assert "<|user|>" in props["chat_template"]
    assert props["is_sleeping"] is False
    slot = {"n_ctx": 512, "speculative": False, "is_processing": False}
    assert served.client.get("/slots").json() == [{"id": number, **slot} for number in range(3)]
    assert str(demo.bundle_path()) not in str(props), "no path of the machine is told"


@pytest.mark.thorough(sample=1)
@pytest.mark.parametrize("path", ["/props", "/slots", "/metrics", "/health", "/memory"])
def test_looking_at_an_unloaded_model_does_not_load_it(path: str) -> None:
    with serving(lambda: ScriptedSession().real, idle_unload_s=0.02) as server:
        end = time.monotonic() + 20
        while server.service.phase != "unloaded":
            assert time.monotonic() < end
            time.sleep(0.005)
        response = server.client.get(path)
        assert response.status_code == 200
        assert server.service.phase == "unloaded"
        if path == "/props":
            assert response.json()["is_sleeping"] is True


def samples(text: str) -> dict[str, float]:
    return {name: float(value) for name, value in (line.split() for line in text.splitlines() if line[0] != "#")}


def test_metrics_count_answers_under_llama_cpp_s_names(served: Served) -> None:
    before = samples(served.client.get("/metrics").text)
    timings = served.complete("The moon was round.", max_tokens=5, temperature=0).json()["timings"]
    response = served.client.get("/metrics")
    after = samples(response.text)
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    grown = {name: after[name] - before[name] for name in after}
    assert grown["llamacpp:tokens_predicted_total"] == 5
    assert 0 < grown["llamacpp:prompt_tokens_total"] <= timings["prompt_n"]
    assert (
        grown["llamacpp:prompt_tokens_total"] + grown["llamacpp:prompt_tokens_cached_total"]
        == timings["prompt_n"] + timings["cache_n"]
    )
    assert grown["edgedec:answers_total"] == 1
    assert grown["llamacpp:n_decode_total"] >= 5
    assert after["llamacpp:n_busy_slots_per_decode"] >= 1
    assert grown["llamacpp:prompt_seconds_total"] > 0
    assert (after["llamacpp:requests_processing"], after["llamacpp:requests_deferred"]) == (0, 0)
    for line in response.text.splitlines():
        assert re.fullmatch(r"# (HELP|TYPE) [a-z_]+:[a-z_]+ .+|[a-z_]+:[a-z_]+ [0-9.e+-]+", line)
    assert set(re.findall(r"# TYPE (\S+)", response.text)) == set(after)


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nothing", 404), ("GET", "/tokenize", 405)])
def test_paths_and_methods_that_are_not_there(served: Served, method: str, path: str, status: int) -> None:
    response = served.client.request(method, path)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/docs/oauth2-redirect"])
def test_no_page_that_loads_scripts_from_another_site_is_served(served: Served, path: str) -> None:
    assert served.client.get(path).status_code == 404


def test_the_framework_sends_no_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")
    gate = create_app(ModelService(lambda: ScriptedSession().real), ServerSettings(model_name="m"))
    telemetry = gate.app._telemetry  # type: ignore[attr-defined]  # FastAPI has no public name for its settings
    assert not any(telemetry[name] for name in ("tracing", "metrics", "logs", "operation_spans", "auto_configure"))


def test_the_page_names_every_path(served: Served, project_root: Path) -> None:
    page = (project_root / "docs" / "server.md").read_text("utf-8")
    for path in served.client.get("/openapi.json").json()["paths"]:
        assert path.partition("{")[0] in page


def test_the_description_tells_the_errors_that_are_sent(served: Served) -> None:
    description = served.client.get("/openapi.json").json()
    for path, methods in description["paths"].items():
        for operation in methods.values():
            described = operation["responses"].keys() - {"200", "204"}
            assert described == {"4XX", "5XX"}, path
    error = {"$ref": "#/components/schemas/ErrorBody", "components": description["components"]}
    for answer in (
        served.client.post("/v1/chat/completions", json={"messages": 3}),
        served.client.post("/tokenize", content="text", headers={"content-type": "text/plain"}),
        served.client.get("/nowhere"),
        served.client.post("/health"),
    ):
        assert 400 <= answer.status_code < 500
        jsonschema.validate(answer.json(), error)
