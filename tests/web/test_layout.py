"""Test the order of the page's parts, without a browser."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

SITE = Path(__file__).resolve().parents[2] / "runtime" / "web" / "site"


class _Order(HTMLParser):
    """Collect the sections, and the tables and buttons in each, in the order of the page."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("section", "table", "form"):
            self.parts.append(dict(attrs).get("id") or tag)


def test_the_talk_comes_before_the_table_of_figures() -> None:
    order = _Order()
    order.feed((SITE / "index.html").read_text("utf-8"))
    assert order.parts == ["plan", "loading", "chat", "form", "facts", "table"]


def test_no_section_hides_the_figures() -> None:
    script = (SITE / "page.js").read_text("utf-8")
    assert 'const SECTIONS = ["plan", "loading", "chat"];' in script
    assert script.count('$("facts").hidden') == 1
