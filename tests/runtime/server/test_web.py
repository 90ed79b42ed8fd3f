"""A site beside the server's own page: its files alone, without a way out of the folder, and the link to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgedec.errors import UsageError
from edgedec.runtime.server.settings import ServerSettings
from edgedec.runtime.server.web import check_site
from tests.runtime.server.support.fake_session import ScriptedSession
from tests.runtime.server.support.serving import serving
from tests.support.chromium import chromium, find_chromium
from tests.web.support.counting_site import write_counting_site


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a folder with the files of a site, a link out of it, and a file beside it."""
    folder = tmp_path / "site"
    (folder / "model").mkdir(parents=True)
    (folder / "site.json").write_text(json.dumps({"format": "edgedec-site"}), "utf-8")
    (folder / "index.html").write_text("the page", "utf-8")
    (folder / "page.js").write_text("// a module", "utf-8")
    (folder / "model" / "weights-000.bin").write_bytes(bytes(range(256)))
    (tmp_path / "secret.txt").write_text("secret", "utf-8")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    return folder


@pytest.mark.thorough
def test_the_files_of_a_site_are_sent_and_no_others(site: Path) -> None:
    with serving(lambda: ScriptedSession(steps=0), web=site) as server:  # type: ignore[arg-type,return-value]
        page = server.client.get("/web/")
        assert (page.status_code, page.text, page.headers["content-type"]) == (
            200,
            "the page",
            "text/html; charset=utf-8",
        )
        assert server.client.get("/web", follow_redirects=True).text == "the page"
        assert server.client.get("/web/page.js").headers["content-type"] == "text/javascript; charset=utf-8"
        assert server.client.get("/web/model/weights-000.bin").content == bytes(range(256))
        for name in ("link.txt", "..%2fsecret.txt", "%2e%2e/secret.txt", "model", "absent.js"):
            response = server.client.get(f"/web/{name}")
            assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found"), name
        assert '<a id="web" href="web/">Run in this browser</a>' in server.client.get("/").text


@pytest.mark.thorough
def test_a_browser_runs_the_model_of_the_server_and_complains_of_nothing(tmp_path: Path) -> None:
    write_counting_site(tmp_path / "my site")
    model = ScriptedSession(steps=0)
    with (
        serving(lambda: model, web=tmp_path / "my site") as server,  # type: ignore[arg-type,return-value]
        chromium(find_chromium(), tmp_path / "profile", webgpu=True) as page,
    ):
        page.open(f"http://127.0.0.1:{server.port}/")
        page.run("document.getElementById('web').click()")
        page.wait("document.getElementById('load') && !document.getElementById('load').disabled")
        page.run("document.getElementById('load').click()")
        page.wait("globalThis.edgedec?.session.isExact")
        assert page.complaints == []


@pytest.mark.thorough
def test_without_a_site_there_is_no_link_to_one(site: Path) -> None:
    with serving(lambda: ScriptedSession(steps=0)) as server:  # type: ignore[arg-type,return-value]
        assert '<a id="web" href="web/" hidden>' in server.client.get("/").text
        assert server.client.get("/web/").status_code == 404


def test_weights_are_not_offered_where_a_key_is_asked_for(site: Path) -> None:
    with pytest.raises(UsageError, match="without an API key, and a key is set"):
        ServerSettings(model_name="m", api_keys=("secret",), web=site)


def test_a_folder_without_a_site_is_refused(site: Path, tmp_path: Path) -> None:
    check_site(site)
    with pytest.raises(UsageError, match="holds no site; make one with: edgedec export BUNDLE --format web -o "):
        check_site(tmp_path)
    (site / "site.json").write_text("[]", "utf-8")
    with pytest.raises(UsageError, match="holds no site"):
        check_site(site)
