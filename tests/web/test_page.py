"""The page of a site in a real browser with a software GPU, and a model that only counts."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edgedec.bundle.bundle import Bundle
from edgedec.bundle.embedded import bundle_folder
from edgedec.runtime.gpu.layout import sizes_of
from edgedec.runtime.gpu.lowering import bundle_layout
from edgedec.runtime.gpu.sized_program import lower
from edgedec.runtime.protocols import Limits
from edgedec.runtime.web.site_writer import VARIANTS, Variant
from tests.support.chromium import Page, chromium, find_chromium
from tests.web.support.counting_site import STEP, served, write_counting_site

pytestmark = pytest.mark.thorough

PLACE = "/a%20folder/of%20sites/"
STATE = "document.getElementById('state').textContent"
ALERT = "document.getElementById('alert').textContent"
TEXTS = "[...document.querySelectorAll('article .text')].map((one) => one.textContent)"
IDLE = "!document.getElementById('send').disabled"
CAN_LOAD = "!document.getElementById('load').disabled"
READY = f"{IDLE} && document.activeElement.id === 'message'"  # the model is loaded
REFUSALS = "document.getElementById('refusals').textContent"
TO_LOAD = "document.getElementById('figures').childElementCount > 7"  # the rows of the adapter are the last


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in whose sub-folder there is a site."""
    root = tmp_path_factory.mktemp("server")
    write_counting_site(root / "a folder" / "of sites")
    return root


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(find_chromium(), tmp_path_factory.mktemp("profile"), webgpu=True) as page:
        page.call("Network.enable")
        page.call("Network.setCacheDisabled", cacheDisabled=True)  # two servers may have the same address
        yield page


@pytest.fixture
def page(browser: Page) -> Page:
    browser.complaints.clear()
    browser.requests.clear()
    return browser


@pytest.fixture
def damaged(site: Path, tmp_path: Path) -> Path:
    """Return a copy of the site, for damage."""
    shutil.copytree(site, tmp_path / "copy")
    return tmp_path / "copy"


def load(page: Page, address: str) -> None:
    page.open(f"{address}{PLACE}")
    page.wait(CAN_LOAD)
    click(page, "load")
    page.wait(READY)


@contextmanager
def changed(page: Page, script: str) -> Iterator[None]:
    """Run a script at the beginning of every page that is opened in the block."""
    added = page.call("Page.addScriptToEvaluateOnNewDocument", source=script)["identifier"]
    try:
        yield
    finally:
        page.call("Page.removeScriptToEvaluateOnNewDocument", identifier=added)


def click(page: Page, name: str) -> None:
    page.run(f"document.getElementById('{name}').click()")


def ask(page: Page, text: str) -> None:
    page.run("document.getElementById('message').focus()")
    page.type(text)
    page.key("Enter", text="\r")


def test_a_model_is_planned_loaded_and_talks_from_a_sub_folder(page: Page, site: Path) -> None:
    with served(site) as address:
        page.open(f"{address}{PLACE}")
        page.wait(CAN_LOAD)
        figures = page.run("document.getElementById('figures').textContent")
        assert "GPU memory" in figures
        assert "swiftshader" in figures
        assert not any("weights" in url or "tokenizer.json" in url for url in page.requests), "the plan fetches little"
        click(page, "load")
        page.wait(READY)
        page.run("document.getElementById('most').value = '4'")
        ask(page, "Hello")
        page.wait(f"{IDLE} && {TEXTS}.length === 2")
        ids = page.run("edgedec.conversation.ask('x') && edgedec.session.cached")
        assert [later - earlier for earlier, later in zip(ids[-3:], ids[-2:], strict=False)] == [STEP, STEP]
        assert "4 tokens" in page.run("document.querySelector('.figures').textContent")
        ask(page, "More")
        page.wait(f"{IDLE} && {TEXTS}.length === 4")
        cached = page.run("document.querySelectorAll('.figures')[1].textContent")
        assert int(re.findall(r"(\d+) of them in the cache", cached)[0]) > 4, "the conversation stays in the cache"
        click(page, "clear")
        assert page.run(TEXTS) == []
        assert page.complaints == []
        assert {url.partition(PLACE)[0] for url in page.requests} == {address}


# Count the bytes of all buffers of the GPU that exist.
COUNT_BYTES = """
globalThis.gpuBytes = 0;
const create = GPUDevice.prototype.createBuffer;
GPUDevice.prototype.createBuffer = function (description) {
  gpuBytes += description.size;
  const buffer = create.call(this, description);
  const destroy = buffer.destroy;
  buffer.destroy = () => {
    gpuBytes -= description.size;
    destroy.call(buffer);
  };
  return buffer;
};
"""


PLANNED = """
Promise.all([import("./runtime/plan.js"), import("./runtime/load.js")]).then(async ([{ makePlan }, { fetchSite }]) =>
  makePlan(await fetchSite(document.baseURI)).downloadBytes)
"""


def test_the_plan_has_all_bytes_of_the_gpu_and_all_that_is_fetched(page: Page, site: Path) -> None:
    with changed(page, COUNT_BYTES), served(site) as address:
        load(page, address)
        manifest = json.loads((site / "a folder" / "of sites" / "site.json").read_text("utf-8"))
        staging = 4  # bytes of the one token that the page reads
        assert page.run("gpuBytes") == sum(manifest["memory"]["items"].values()) + staging
        sizes = {one["name"]: one["bytes"] for one in (*manifest["weights"], *manifest["programs"].values())}
        sizes |= {
            manifest[name]["name"]: manifest[name]["bytes"] for name in ("tokenizer", "chat_template", "arithmetic")
        }
        names = [url.partition(PLACE)[2].partition("?")[0] for url in page.requests if "model/" in url]
        assert page.run(PLANNED) == sum(sizes[name] for name in names)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_browser_accepts_the_shaders_of_every_variant(page: Page, site: Path, variant: Variant) -> None:
    """Compile those of other adapters, too, which this one never runs."""
    layout = bundle_layout(Bundle.open(bundle_folder("demo")), 8)
    program = lower(layout, sizes_of(Limits(nodes=8, depth=3, positions=64)), **variant._asdict())
    with served(site) as address:
        page.open(f"{address}{PLACE}")
        page.run(
            "navigator.gpu.requestAdapter().then((it) => it.requestDevice()).then((it) => { globalThis.device = it; })"
        )
        for kernel in program.kernels:
            messages = page.run(
                f"device.createShaderModule({{ code: {json.dumps(kernel.source)} }}).getCompilationInfo()"
                ".then((info) => info.messages.map((one) => one.message))"
            )
            assert messages == [], kernel.name


def test_stop_ends_an_answer_whose_text_stays(page: Page, site: Path) -> None:
    with served(site) as address:
        load(page, address)
        # Each token waits for a permit, so that the answer is still being written when it is stopped.
        page.run(
            "(() => { const { executor } = edgedec.session; const run = executor.run.bind(executor); let left = 3;"
            "executor.run = async (...pass) => { while (left === 0) await new Promise((go) => setTimeout(go, 5));"
            "left -= 1; return run(...pass); }; globalThis.permit = () => { left = 1; }; })()"
        )
        ask(page, "Hello")
        page.wait("document.getElementById('speed').textContent.includes('3 tokens')")
        assert page.run("document.getElementById('conversation').getAttribute('aria-busy')") == "true"
        click(page, "stop")
        page.run("permit()")
        page.wait(IDLE)
        assert page.run("document.getElementById('speed').textContent") == "Stopped"
        assert len(page.run(TEXTS)[1]) > 0


def test_a_budget_that_is_too_small_refuses_before_anything_is_fetched(page: Page, site: Path) -> None:
    with served(site) as address:
        page.open(f"{address}{PLACE}?budget=0.01")
        page.wait(TO_LOAD)
        assert page.run(f"{CAN_LOAD} === false")
        assert "more than the budget of 0.0 MiB" in page.run(REFUSALS)
        page.run("document.getElementById('budget').value = '64'")
        page.run("document.getElementById('budget').dispatchEvent(new Event('input'))")
        assert page.run(f"{CAN_LOAD} && {REFUSALS} === ''")
        page.open(f"{address}{PLACE}?budget=600MB")
        page.wait(TO_LOAD)
        assert page.run(f"{CAN_LOAD} === false")
        assert "the address says budget=600MB, which must be a number of MiB" in page.run(REFUSALS)
        assert not any("model/" in url for url in page.requests)


def test_an_adapter_that_is_too_small_refuses_before_anything_is_fetched(page: Page, damaged: Path) -> None:
    manifest = damaged / "a folder" / "of sites" / "site.json"
    content = json.loads(manifest.read_text("utf-8"))
    content["memory"]["limits"]["maxBufferSize"] = 1 << 50
    manifest.write_text(json.dumps(content), "utf-8")
    with served(damaged) as address:
        page.open(f"{address}{PLACE}")
        page.wait(TO_LOAD)
        assert page.run(f"{CAN_LOAD} === false")
        refusal = page.run(REFUSALS)
        assert re.fullmatch(r"the model needs maxBufferSize 1125899906842624, and this GPU offers \d+", refusal)
        assert not any("model/" in url for url in page.requests)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("weights-000.bin", None, "model/weights-000.bin is missing (the server says 404)"),
        ("weights-000.bin", b"\x01", "model/weights-000.bin is damaged (its SHA-256 is "),
        ("tokenizer.json", b"x", "model/tokenizer.json is damaged"),
    ],
)
def test_a_file_that_is_missing_or_damaged_is_named(
    page: Page, damaged: Path, name: str, change: bytes | None, words: str
) -> None:
    file = damaged / "a folder" / "of sites" / "model" / name
    if change is None:
        file.unlink()
    else:
        file.write_bytes(change + file.read_bytes()[len(change) :])
    with served(damaged) as address:
        page.open(f"{address}{PLACE}")
        page.wait(CAN_LOAD)
        click(page, "load")
        page.wait(f"{ALERT} !== ''")
        assert words in page.run(ALERT)
        assert page.run(CAN_LOAD), "it can be tried again"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("delete Navigator.prototype.gpu", "this browser has no WebGPU"),
        ("navigator.gpu.requestAdapter = async () => null", "offers no GPU"),
        (
            "delete Navigator.prototype.gpu; Object.defineProperty(globalThis, 'isSecureContext', { value: false })",
            "over https and on this machine",
        ),
    ],
)
def test_a_browser_without_webgpu_is_told_what_is_missing(page: Page, site: Path, script: str, words: str) -> None:
    with changed(page, script), served(site) as address:
        page.open(f"{address}{PLACE}")
        page.wait(f"{ALERT} !== ''")
        assert words in page.run(ALERT)
        assert page.run(f"{CAN_LOAD} === false")


# Press Cancel as soon as the known text is being written.
CANCEL = """
globalThis.reads = 0;
const map = GPUBuffer.prototype.mapAsync;
GPUBuffer.prototype.mapAsync = async function (...range) {
  await map.apply(this, range);
  if (document.getElementById("stage").textContent !== "Trying a known text") return;
  reads += 1;
  document.getElementById("cancel").click();
};
"""


def test_loading_can_be_cancelled_until_its_end(page: Page, site: Path) -> None:
    with changed(page, CANCEL), served(site) as address:
        page.open(f"{address}{PLACE}")
        page.wait(CAN_LOAD)
        click(page, "load")
        page.wait("!document.getElementById('plan').hidden")
        assert page.run("reads") == 1, "no token after the first"
        assert page.run(ALERT) == ""
        assert page.run("globalThis.edgedec === undefined")


# Lose the GPU at its first result, and while weights are written into its memory.
LOSE_AT_FIRST = "GPUBuffer.prototype.mapAsync = async () => { throw new DOMException('it is gone', 'AbortError'); }"
LOSE_WITH_WEIGHTS = """
let device;
const request = GPUAdapter.prototype.requestDevice;
GPUAdapter.prototype.requestDevice = async function (options) {
  return (device = await request.call(this, options));
};
const write = GPUQueue.prototype.writeBuffer;
GPUQueue.prototype.writeBuffer = function (...data) {
  if (document.getElementById("stage").textContent === "Fetching weights") device.destroy();
  write.apply(this, data);
};
"""


@pytest.mark.parametrize(
    ("script", "stage"), [(LOSE_AT_FIRST, "Preparing the GPU"), (LOSE_WITH_WEIGHTS, "Fetching weights")]
)
def test_a_gpu_that_is_lost_while_the_model_is_loaded_is_reported(
    page: Page, site: Path, script: str, stage: str
) -> None:
    with changed(page, script), served(site) as address:
        page.open(f"{address}{PLACE}")
        page.wait(CAN_LOAD)
        click(page, "load")
        page.wait(f"{ALERT} !== ''")
        assert re.fullmatch(r"the GPU was lost \(.+\); reload the page to load the model again", page.run(ALERT))
        assert page.run("document.getElementById('stage').textContent") == stage


def test_an_export_over_an_earlier_one_is_not_mixed_with_files_that_the_browser_kept(
    page: Page, tmp_path: Path
) -> None:
    folder = tmp_path / "a folder" / "of sites"
    page.call("Network.setCacheDisabled", cacheDisabled=False)
    try:
        with served(tmp_path, headers={"Cache-Control": "max-age=3600"}) as address:
            for step in (STEP, STEP + 2):
                write_counting_site(folder, step=step)
                load(page, address)
                assert page.run("edgedec.session.isExact")
                ids = page.run("edgedec.session.generate([100], { mostTokens: 3 }).then((answer) => answer.tokens)")
                assert ids == [100 + step, 100 + 2 * step, 100 + 3 * step]
    finally:
        page.call("Network.setCacheDisabled", cacheDisabled=True)


def test_a_gpu_that_writes_other_tokens_is_reported(page: Page, site: Path, damaged: Path) -> None:
    manifest = damaged / "a folder" / "of sites" / "site.json"
    content = json.loads(manifest.read_text("utf-8"))
    content["known_answer"]["tokens"][1] += 1
    manifest.write_text(json.dumps(content), "utf-8")
    for folder, note in ((damaged, "it wrote other tokens after a known text than edgedec"), (site, "")):
        with served(folder) as address:
            load(page, address)
            assert (note in page.run(STATE)) if note else page.run(STATE) == ""


def test_a_lost_gpu_is_reported_at_once_and_with_every_message(page: Page, site: Path) -> None:
    with served(site) as address:
        load(page, address)
        page.run("edgedec.session.executor.device.destroy()")
        page.wait(f"{ALERT}.includes('the GPU was lost')")
        page.run("document.getElementById('alert').textContent = ''")
        ask(page, "Hello")
        page.wait(f"{ALERT}.includes('the GPU was lost')")
        assert page.run("document.getElementById('message').value") == "Hello"


def test_a_gpu_that_refuses_a_pass_is_reported(page: Page, site: Path) -> None:
    with served(site) as address:
        load(page, address)
        page.run("edgedec.session.executor.steps[0].groups[0] = { constant: 1e6, rows: 0, results: 0, divisor: 1 }")
        for _ in range(2):
            ask(page, "Hello")
            page.wait(IDLE)
        assert "this GPU refused a pass" in page.run(ALERT)


@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_fits_the_screen(page: Page, site: Path, width: int) -> None:
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=640, deviceScaleFactor=1, mobile=width < 500)
    with served(site) as address:
        page.open(f"{address}{PLACE}")
        page.wait(CAN_LOAD)
        assert page.run("document.documentElement.scrollWidth") <= width
        click(page, "load")
        page.wait(READY)
        page.run("document.getElementById('most').value = '20'")
        ask(page, "x" * 200)
        page.wait(f"{IDLE} && {TEXTS}.length === 2")
        assert page.run("document.documentElement.scrollWidth") <= width
    page.call("Emulation.clearDeviceMetricsOverride")


def test_controls_have_names_for_screen_readers(page: Page, site: Path) -> None:
    with served(site) as address:
        page.open(f"{address}{PLACE}")
        page.wait(CAN_LOAD)
        plan = named_roles(page)
        click(page, "load")
        page.wait(READY)
        chat = named_roles(page)
    controls = {"textbox", "button", "spinbutton", "log", "table"}
    assert [role for role, name in plan + chat if role in controls and not name] == []
    assert {"button", "spinbutton", "table"} <= {role for role, _ in plan}
    assert {"textbox", "button", "spinbutton", "log"} <= {role for role, _ in chat}


def named_roles(page: Page) -> list[tuple[str, str]]:
    """Return role and name of each element that a screen reader meets."""
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    return [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node.get("ignored")]
