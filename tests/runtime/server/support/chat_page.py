"""The page for chats in a browser, with the steps that its tests have in common."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

from tests.support.chromium import Page

# Answers that a test writes itself: ``asked`` has the requests, ``delta`` sends a part, ``say`` a chunk, ``finish`` the end.
_SCRIPTED = """
globalThis.asked = [];
globalThis.realFetch ??= globalThis.fetch;
globalThis.fetch = (path, options) => {
  if (!String(path).endsWith("chat/completions")) return realFetch(path, options);
  asked.push(JSON.parse(options.body));
  const stream = new ReadableStream({ start(controller) { globalThis.feed = controller; } });
  const own = globalThis.feed;
  options.signal.addEventListener("abort", () => own.error(new DOMException("stopped", "AbortError")));
  return Promise.resolve(new Response(stream));
};
globalThis.say = (chunk) => feed.enqueue(new TextEncoder().encode(`data: ${JSON.stringify(chunk)}\\n\\n`));
globalThis.delta = (delta) => say({ choices: [{ delta }] });
globalThis.finish = () => { feed.enqueue(new TextEncoder().encode("data: [DONE]\\n\\n")); feed.close(); };
"""


class ChatPage:
    """The page, as a user sees it.

    Members:
        page: the tab of the browser.
    """

    IDLE = "!document.getElementById('send').hidden"
    TEXTS = "[...document.querySelectorAll('article .text')].map((one) => one.innerText.trim())"

    def __init__(self, page: Page, port: int) -> None:
        self.page, self._url = page, f"http://127.0.0.1:{port}/"
        self.run, self.wait, self.call = page.run, page.wait, page.call
        self.key, self.type, self.complaints = page.key, page.type, page.complaints

    @classmethod
    def fresh(cls, page: Page, port: int) -> Self:
        """Open the page in a tab of the usual size, without any data of an earlier test."""
        made = cls(page, port)
        page.open(made._url)
        page.run("localStorage.clear(); sessionStorage.clear()")
        made.emulate(1000, 700, "light")
        made.reload()
        page.run("localStorage.clear()")  # the page that was left may have kept an answer
        page.complaints.clear()
        return made

    def emulate(self, width: int, height: int, scheme: str) -> None:
        """Give the tab a size in pixels, and the user's choice of light or dark colours."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def reload(self) -> None:
        """Load the page again."""
        self.page.open(self._url)

    def script(self) -> None:
        """Let the test write the answers."""
        self.run(_SCRIPTED)

    @property
    def texts(self) -> list[str]:
        """The texts of the messages that are shown."""
        texts: list[str] = self.run(self.TEXTS)
        return texts

    @property
    def chats(self) -> list[str]:
        """The titles in the list of chats."""
        titles: list[str] = self.run("[...document.querySelectorAll('#chat-list .name')].map((one) => one.textContent)")
        return titles

    def stored(self) -> list[dict[str, Any]]:
        """Return the conversations in the browser's storage, the oldest first."""
        found: list[dict[str, Any]] = self.run(
            "Object.entries(localStorage).filter(([key]) => key.startsWith('edgedec.chat.'))"
            ".map(([, one]) => JSON.parse(one))"
        )
        return sorted(found, key=lambda one: float(one["created"]))

    def text(self, selector: str) -> str:
        """Return the text of an element."""
        return str(self.run(f"document.querySelector({json.dumps(selector)}).textContent"))

    def press(self, selector: str) -> None:
        """Press a button, which must be shown and not disabled."""
        where = f"document.querySelector({json.dumps(selector)})"
        assert self.run(f"Boolean({where}?.checkVisibility() && !{where}.disabled)"), selector
        self.run(f"{where}.click()")

    def set_option(self, name: str, value: str) -> None:
        self.run(f"document.getElementById('{name}').value = '{value}'")

    def ask(self, text: str) -> None:
        """Send a message by the keyboard."""
        self.run("document.getElementById('message').focus()")
        self.type(text)
        self.key("Enter", text="\r")

    def wait_answers(self, count: int) -> None:
        """Wait until so many answers are shown and none is being written."""
        self.wait(f"{self.IDLE} && document.querySelectorAll('article.assistant').length === {count}")

    def converse(self, *texts: str) -> None:
        """Send messages, each followed in ``texts`` by the answer that it gets."""
        if self.run("typeof asked") == "undefined":
            self.script()
        for message, answer in zip(texts[::2], texts[1::2], strict=True):
            count = self.run("asked.length")
            self.ask(message)
            self.wait(f"asked.length === {count + 1}")
            self.run(f"delta({{content: {json.dumps(answer)}}}); finish()")
            self.wait(self.IDLE)

    def edit(self, index: int, text: str) -> None:
        """Replace the text of a message of the user and send it."""
        self.press(f'[aria-label="Edit message {index + 1}"]')
        self.run("document.getElementById('edited').select()")
        self.type(text)
        self.key("Enter", text="\r")

    def open_tools(self, index: int) -> None:
        """Show the buttons of a chat in the list."""
        self.run(f"document.querySelectorAll('#chat-list li')[{index}].querySelector('[aria-expanded]').click()")

    def choose_file(self, path: Path) -> None:
        """Give the page a file to import."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path)])
