"""The files of the page, without a browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edgedec.runtime.server.page import PAGE_PATHS, page_routes
from tests.runtime.server.support.fake_session import ScriptedSession
from tests.runtime.server.support.serving import Served, serving


@pytest.mark.thorough
def test_the_files_are_sent_without_a_key_and_may_run_scripts_of_the_server_only(served: Served) -> None:
    types = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
    for path, name in PAGE_PATHS.items():
        response = served.client.get(path)
        assert response.status_code == 200, path
        assert response.headers["content-type"] == f"{types[name.rpartition('.')[2]]}; charset=utf-8"
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; ")
        assert "unsafe" not in policy
        assert "require-trusted-types-for 'script'; trusted-types 'none'" in policy
    with serving(lambda: ScriptedSession().real, api_keys=("secret",)) as locked:
        assert {locked.client.get(path).status_code for path in PAGE_PATHS} == {200}
        assert locked.client.get("/props").status_code == 401
        assert locked.client.get("/page/absent.js").status_code == 401, "only the page's own files need no key"


def test_every_file_of_the_folder_is_served() -> None:
    folder = Path(page_routes.__code__.co_filename).parent
    assert sorted(PAGE_PATHS.values()) == sorted(
        path.name for path in folder.iterdir() if path.suffix in (".html", ".css", ".js")
    )


def test_a_browser_asks_whether_a_file_has_changed(served: Served) -> None:
    whole = served.client.get("/page/page.js")
    assert whole.headers["cache-control"] == "no-cache"
    tag = whole.headers["etag"]
    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = served.client.get("/page/page.js", headers={"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag), known
    assert served.client.get("/page/page.js", headers={"If-None-Match": '"other"'}).content == whole.content
    assert served.client.get("/page/page.css").headers["etag"] != tag


def test_the_files_name_no_address_and_read_no_text_as_html() -> None:
    folder = Path(page_routes.__code__.co_filename).parent
    for name in PAGE_PATHS.values():
        text = (folder / name).read_text("utf-8")
        # Patterns of addresses are no addresses.
        assert re.findall(r"https?://\w|url\(|@import", text.replace("https?://", "")) == [], name
        assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|prompt\(", text) == [], name
        assert text.count("\n") < 400, name
