"""The modules of the page in Node.js: Markdown as a tree, conversations as a tree, and their storage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from edgedec.runtime.server.page import page_routes
from tests.web.support.node import Node, find_node

_STORAGE = """
class FakeStorage {
  constructor(room = 1e9) { this.map = new Map(); this.room = room; }
  get length() { return this.map.size; }
  key(at) { return [...this.map.keys()][at] ?? null; }
  getItem(key) { return this.map.get(key) ?? null; }
  removeItem(key) { this.map.delete(key); }
  setItem(key, value) {
    const rest = [...this.map].filter(([other]) => other !== key).reduce((sum, [, text]) => sum + text.length, 0);
    if (rest + value.length > this.room) throw new DOMException("full", "QuotaExceededError");
    this.map.set(key, value);
  }
}
const { Store } = await use("store");
const conversation = await use("conversation");
const made = (...texts) => {
  const one = conversation.newConversation();
  texts.forEach((text, at) => {
    conversation.add(one, conversation.newMessage(one.leaf, at % 2 ? "assistant" : "user", text));
  });
  return one;
};
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Node:
    """Return Node.js with the modules of the page."""
    folder = tmp_path_factory.mktemp("page")
    shutil.copytree(Path(page_routes.__code__.co_filename).parent, folder / "runtime")
    (folder / "page.js").touch()  # the folder needs no runtime of a site
    return Node(find_node(), folder)


def test_a_text_is_read_as_a_tree(node: Node) -> None:
    """Compare short texts with their trees, in which a text is its characters and everything else a list."""
    cases = {
        "# A *b*": [["heading", 1, "A ", ["em", "b"]]],
        "#no": [["paragraph", "#no"]],
        "a\nb\n\nc": [["paragraph", "a", ["break"], "b"], ["paragraph", "c"]],
        "**a _b_ c** d": [["paragraph", ["strong", "a ", ["em", "b"], " c"], " d"]],
        "***a***": [["paragraph", ["em", ["strong", "a"]]]],
        "a*b* 2 * 3 * 4": [["paragraph", "a", ["em", "b"], " 2 ", "*", " 3 ", "*", " 4"]],
        "snake_case_name __x__": [["paragraph", "snake", "_", "case", "_", "name ", ["strong", "x"]]],
        "~~a~~ ~b~": [["paragraph", ["del", "a"], " ", "~", "b", "~"]],
        "*a **b* c**": [["paragraph", ["em", "a ", "**", "b"], " c", "**"]],
        "\\*a\\* \\n": [["paragraph", "*", "a", "*", " \\n"]],
        "`a*b` ``c`d`` `open": [["paragraph", ["code", "a*b"], " ", ["code", "c`d"], " ", "`", "open"]],
        "[a *b*](https://e.org/x_(y))": [["paragraph", ["link", "https://e.org/x_(y)", "a ", ["em", "b"]]]],
        '[a](https://e.org "t") ![p](http://e.org)': [
            ["paragraph", ["link", "https://e.org/", "a"], " ", ["link", "http://e.org/", "p"]]
        ],
        "see https://e.org/a_b. (http://e.org/c)": [
            ["paragraph", "see ", ["link", "https://e.org/a_b", "https://e.org/a_b"], ". (",
             ["link", "http://e.org/c", "http://e.org/c"], ")"]
        ],
        "[a](javascript:x) [b](https://u:p@e.org/) [c](/d)": [
            ["paragraph", "[a](javascript:x) [b](https://u:p@e.org/) [c](/d)"]
        ],
        "**a* b": [["paragraph", "**", "a", "*", " b"]],
        "- a\n- b\n  - c\n\n    d": [["list", None, [["paragraph", "a"]], [["paragraph", "b"], ["list", None, [
            ["paragraph", "c"], ["paragraph", "d"]]]]]],
        "3. a\n4) b\ntext": [["list", 3, [["paragraph", "a"]], [["paragraph", "b", ["break"], "text"]]]],
        "1. a\n   ```\n   x\n   ```\n2. b": [["list", 1, [["paragraph", "a"], ["code", "", "x"]], [["paragraph", "b"]]]],
        "2020. is a year": [["list", 2020, [["paragraph", "is a year"]]]],
        "a\n2. b": [["paragraph", "a", ["break"], "2. b"]],
        "> a\n> - b\nc": [["quote", ["paragraph", "a"], ["list", None, [["paragraph", "b"]]]], ["paragraph", "c"]],
        "---\n***\n- - -": [["rule"], ["rule"], ["rule"]],
        "```py x\na\n  b": [["code", "py", "a", "  b"]],
        "~~~~\n```\n~~~\n~~~~~": [["code", "", "```", "~~~"]],
        "```\n\n```\nafter": [["code", "", ""], ["paragraph", "after"]],
        "``` a ` b": [["paragraph", "```", " a ", "`", " b"]],
        "a | b\n:-|-:\n1 | `2\\|3` | 4\n\nend": [
            ["table", ["start", "end"], [["a"], ["b"]], [[["1"], [["code", "2\\|3"], " | 4"]]]], ["paragraph", "end"]
        ],
        "a | b\n---": [["paragraph", "a | b"], ["rule"]],
        "<b>x</b> &amp;\r\ny": [["paragraph", "<b>x</b> &amp;", ["break"], "y"]],
    }  # fmt: skip
    script = """
    const { blocks } = await use("markdown");
    const inline = (node) => {
      if (node.kind === "text") return node.text;
      if (node.kind === "code") return ["code", node.text];
      if (node.kind === "link") return ["link", node.href, ...node.children.map(inline)];
      return [node.kind, ...(node.children ?? []).map(inline)];
    };
    const cell = (nodes) => nodes.map(inline);
    const block = (one) => {
      if (one.kind === "heading") return ["heading", one.level, ...one.children.map(inline)];
      if (one.kind === "code") return ["code", one.language, ...one.lines.map((line) => line.text)];
      if (one.kind === "quote") return ["quote", ...one.blocks.map(block)];
      if (one.kind === "list") return ["list", one.first, ...one.items.map((item) => item.map(block))];
      if (one.kind === "table") return ["table", one.align, one.head.map(cell), one.rows.map((row) => row.map(cell))];
      return [one.kind, ...(one.children ?? []).map(inline)];
    };
    return value.map((text) => blocks(text).map(block));
    """
    trees = node.run(script, list(cases))
    assert dict(zip(cases, trees, strict=True)) == cases


def test_every_text_keeps_its_characters_and_their_places(node: Node) -> None:
    """Read texts of random marks, and all their beginnings: what is shown is in the source where the tree says."""
    script = """
    const { blocks } = await use("markdown");
    const marks = ["a", " ", "b c", "*", "**", "_", "~~", "`", "```", "\\n", "\\n\\n", "- ", "1. ", "> ", "# ", "|",
      "|-|\\n", "[", "](https://e.org)", "](javascript:x)", "\\\\", "<b>", "!", "  ", "\\t", "\\r\\n", "https://e.org/",
      "😀", "---"];
    let state = 1;
    const draw = (count) => (state = (state * 48271) % 2147483647) % count;
    const wrong = [];
    const check = (source, one) => {
      if (Array.isArray(one)) one.forEach((part) => check(source, part));
      else if (one && typeof one === "object") {
        if (one.kind === "link" && !/^https?:/.test(one.href)) wrong.push(source);
        const isText = typeof one.text === "string" && one.kind !== "code"; // line ends in code are blanks
        if (isText && source.slice(one.at, one.at + one.text.length) !== one.text) wrong.push(source);
        Object.values(one).forEach((part) => check(source, part));
      }
    };
    for (let round = 0; round < 1500; round += 1) {
      const source = Array.from({ length: 1 + draw(25) }, () => marks[draw(marks.length)]).join("");
      check(source, blocks(source));
      check(source.slice(0, draw(source.length)), blocks(source.slice(0, draw(1))));
    }
    return wrong;
    """
    assert node.run(script) == []


@pytest.mark.thorough
def test_hostile_texts_make_small_and_flat_trees(node: Node) -> None:
    """Read texts that are made to be slow to read, or deep."""
    script = """
    const { blocks } = await use("markdown");
    const texts = (n) => ({
      stars: "*a ".repeat(n), closed: "*a ".repeat(n) + "a* ".repeat(n), mixed: "*a _b ~~c ".repeat(n),
      brackets: "[".repeat(n), links: "[](".repeat(n),
      ticks: "` `` ".repeat(n), escapes: "\\\\[".repeat(n), fence: "~".repeat(n) + "`",
      quotes: ">".repeat(n), items: "- ".repeat(n), rule: "- ".repeat(n) + "x", heading: "# " + " #".repeat(n) + "x",
      divider: "|a\\n" + " ".repeat(n) + "-" + " ".repeat(n) + "x", table: "|".repeat(n) + "\\n" + "|-".repeat(n),
      nested: Array.from({ length: 1000 }, (_, at) => " ".repeat(2 * at) + "- a").join("\\n"),
    });
    const size = (one) => one && typeof one === "object" ? Object.values(one).reduce((sum, part) => sum + size(part), 1) : 1;
    const depth = (one) => one && typeof one === "object" ? 1 + Math.max(0, ...Object.values(one).map(depth)) : 0;
    const found = {};
    for (const [name, text] of Object.entries(texts(20_000))) {
      const tree = blocks(text);
      found[name] = [size(tree) / text.length, depth(tree)];
    }
    return found;
    """
    for name, (size, depth) in node.run(script).items():
        assert size < 30, name
        assert depth < 200, name


def test_messages_are_a_tree_whose_branches_stay(node: Node) -> None:
    script = (
        _STORAGE
        + """
    const { add, branch, choose, forServer, newMessage, versions, asMarkdown, titleOf } = conversation;
    const one = made("a", "1", "b", "2");
    const [a, first, b, second] = one.messages;
    const other = newMessage(null, "user", "c");
    add(one, other, newMessage(other.id, "assistant", "3"));
    const texts = () => branch(one).map((message) => message.content).join("");
    const seen = [texts()];
    choose(one, a.id);
    seen.push(texts());
    add(one, newMessage(first.id, "user", "d"));
    seen.push(texts());
    choose(one, other.id);
    seen.push(texts(), versions(one, a).map((message) => message.content).join(""));
    choose(one, a.id);
    seen.push(texts(), titleOf(one), asMarkdown(one));
    one.system = "s";
    return [seen, forServer(one, branch(one, first.id))];
    """
    )
    seen, sent = node.run(script)
    assert seen == ["c3", "a1b2", "a1d", "c3", "ac", "a1d", "a", "# a\n\n## You\n\na\n\n## Model\n\n1\n\n## You\n\nd\n"]
    assert sent == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "1"},
    ]


VALID: dict[str, Any] = {
    "version": 1, "id": "c1", "title": "", "system": "", "created": 1, "updated": 2, "leaf": "b",
    "messages": [
        {"id": "a", "parent": None, "role": "user", "content": "x"},
        {"id": "b", "parent": "a", "role": "assistant", "content": "y", "guessed": [[0, 1]]},
    ],
}  # fmt: skip


def _with(**members: Any) -> dict[str, Any]:
    return {**VALID, **members}


def _message(at: int, **members: Any) -> dict[str, Any]:
    return _with(
        messages=[{**one, **(members if number == at else {})} for number, one in enumerate(VALID["messages"])]
    )


WRONG = {
    "": (["x"], "it is not an object"),
    "no messages": ({}, "it has neither a version nor a list of messages"),
    "version": (_with(version="1"), "version is not a positive whole number"),
    "newer": (_with(version=2), "it has version 2, and this page knows versions up to 1: use a newer edgedec"),
    "unknown": (_with(colour=1), "colour is not a field that this page knows"),
    "title": (_with(title=1), "title is not a text"),
    "time": (_with(created=None), "created is not a number"),
    "id": (_with(id="../x"), "id is not a word of small letters and digits"),
    "list": (_with(messages={}), "messages is not a list"),
    "leaf": (_with(leaf="c"), "leaf names no message"),
    "no leaf": (_with(leaf=None), "leaf names no message"),
    "message": (_with(messages=[1]), "messages[0] is not an object"),
    "field": (_message(1, html="x"), "messages[1].html is not a field that this page knows"),
    "twice": (_message(1, id="a"), "messages[1].id occurs twice"),
    "role": (_message(0, role="tool"), "messages[0].role is not user or assistant"),
    "cycle": (_message(0, parent="b"), "messages[0].parent names no earlier message"),
    "answer to nothing": (_message(1, parent=None), "messages[1] is an answer to no message of the user"),
    "content": (_message(0, content=["x"]), "messages[0].content is not a text"),
    "figures": (_message(1, figures=1), "messages[1].figures is not a text"),
    "marks": (_message(1, guessed=[[2, 1]]), "messages[1].guessed is not a list of pairs of growing numbers"),
    "overlap": (_message(1, guessed=[[0, 5], [3, 6]]), "messages[1].guessed is not a list of pairs of growing numbers"),
    "plain": (
        {"messages": [{"role": "user", "content": "x", "name": "n"}]},
        "messages[0].name is not a field that this page knows",
    ),
    "plain role": (
        {"messages": [{"role": "assistant", "content": "x"}]},
        "messages[0] is an answer to no message of the user",
    ),
}  # fmt: skip


def test_a_conversation_that_is_wrong_is_refused_with_the_place(node: Node) -> None:
    script = """
    const { checked } = await use("conversation");
    return value.map((one) => { try { checked(one); return "taken"; } catch (error) { return error.message; } });
    """
    values = [VALID, *(one for one, _ in WRONG.values())]
    assert node.run(script, values) == ["taken", *(message for _, message in WRONG.values())]


def test_a_file_with_plain_messages_is_read(node: Node) -> None:
    script = (
        _STORAGE
        + """
    const store = new Store(new FakeStorage());
    const { ids } = store.import(JSON.stringify({ messages: value }));
    const one = store.get(ids[0]);
    return [one.version, one.system, conversation.forServer(one, conversation.branch(one))];
    """
    )
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "1"},
    ]
    assert node.run(script, messages) == [1, "s", messages]


def test_two_tabs_do_not_lose_each_others_messages(node: Node) -> None:
    script = (
        _STORAGE
        + """
    const storage = new FakeStorage();
    const one = made("a", "1");
    new Store(storage).save(one);
    const [left, right] = [new Store(storage), new Store(storage)].map((store) => [store, store.get(one.id)]);
    for (const [[store, own], text] of [[left, "b"], [right, "c"]]) {
      conversation.add(own, conversation.newMessage(own.leaf, "user", text));
      store.save(own);
    }
    const kept = new Store(storage).get(one.id);
    return [kept.messages.map((message) => message.content), conversation.branch(kept).map((message) => message.content)];
    """
    )
    assert node.run(script) == [["a", "1", "b", "c"], ["a", "1", "c"]]


def test_what_does_not_fit_stays_in_the_page_and_what_was_stored_stays_stored(node: Node) -> None:
    script = (
        _STORAGE
        + """
    const storage = new FakeStorage(1200);
    const store = new Store(storage);
    const [small, large] = [made("a", "1"), made("x".repeat(2000))];
    const said = [store.save(small), store.save(large)];
    const before = storage.getItem(`edgedec.chat.${small.id}`);
    conversation.add(small, conversation.newMessage(small.leaf, "user", "y".repeat(2000)));
    said.push(store.save(small));
    const isKept = storage.getItem(`edgedec.chat.${small.id}`) === before;
    const shown = [store.get(small.id).messages.length, store.get(large.id).messages.length];
    const marks = store.list().map((entry) => entry.isStored);
    storage.room = 1e6;
    const rest = store.saveRest();
    return { said, isKept, shown, marks, rest, stored: new Store(storage).list().length, left: store.unsaved };
    """
    )
    full = "the browser's storage for this page is full"
    assert node.run(script) == {
        "said": ["", full, full], "isKept": True, "shown": [3, 1], "marks": [False, False], "rest": True, "stored": 2,
        "left": [],
    }  # fmt: skip


@pytest.mark.parametrize("raw", ['{"version": 1', '{"version": 9}', "[]", '"text"', json.dumps(_with(id="other"))])
def test_what_cannot_be_read_is_named_and_never_overwritten(node: Node, raw: str) -> None:
    script = (
        _STORAGE
        + """
    const storage = new FakeStorage();
    storage.setItem("edgedec.chat.c1", value);
    storage.setItem("another program's", "x");
    const store = new Store(storage);
    const [entry] = store.list();
    const own = { ...made("a"), id: "c1" };
    const said = store.save(own);
    const raw = store.raw("c1");
    const restored = store.remove("c1")();
    return [entry.problem !== "", said.includes("is left as it is"), raw, storage.length, store.exported().unreadable];
    """
    )
    named, said, kept, length, unreadable = node.run(script, raw)
    assert (named, said, kept, length) == (True, True, raw, 2)
    assert unreadable == 0, "the copy in the page can be read"


def test_an_export_comes_back_and_a_second_import_adds_nothing(node: Node) -> None:
    script = (
        _STORAGE
        + """
    const store = new Store(new FakeStorage());
    const [one, other] = [made("a", "1"), made("b")];
    store.save(one);
    store.save(other);
    const { text } = store.exported();
    const again = store.import(text);
    const fresh = new Store(new FakeStorage());
    const first = fresh.import(text);
    const changed = text.replace('"content": "b"', '"content": "c"');
    const second = fresh.import(changed);
    const wrong = [];
    const untitled = text.replace('"title": ""', '"title": 1');
    for (const bad of ["{", '{"format": "x"}', '{"format": "edgedec-chats", "version": 2}', untitled]) {
      try { fresh.import(bad); } catch (error) { wrong.push(error.message); }
    }
    const own = fresh.list().map((entry) => entry.title).sort();
    return [[again.ids.length, again.same], [first.ids.length, first.same], [second.ids.length, second.same], own, wrong];
    """
    )
    again, first, second, titles, wrong = node.run(script)
    assert (again, first, second) == ([0, 2], [2, 0], [1, 1])
    assert titles == ["a", "b", "c"], "the one that differs is beside that of its id"
    assert wrong == [
        "it is not JSON",
        'its format is "x", not "edgedec-chats"',
        "its version is 2, and this page reads 1",
        "conversations[0]: title is not a text",
    ]


def test_the_memory_is_said_in_plain_words(node: Node) -> None:
    script = """
    const { memoryOf } = await use("server");
    const MiB = 1024 * 1024;
    const ledger = { budget_bytes: 64 * MiB, charged_bytes: 40 * MiB, shut: false, floor_bytes: MiB, peak_bytes: 50 * MiB,
      items: { weights: 30 * MiB, arena: 10 * MiB } };
    const bare = { ...ledger, budget_bytes: null, shut: true };
    return [memoryOf(ledger, 60 * MiB), memoryOf(bare, 60 * MiB).text];
    """
    shown, bare = node.run(script)
    assert shown == {
        "text": "Memory budget 64.0 MiB: 40.0 MiB used, 24.0 MiB free",
        "most": 64 << 20,
        "used": 40 << 20,
        "parts": [
            "weights: 30.0 MiB",
            "keys and values of texts: 10.0 MiB",
            "of the free memory, kept for small requests: 1.0 MiB",
            "most that was used at a time: 50.0 MiB",
        ],
    }
    assert bare == "No memory budget: 40.0 MiB used of the 60.0 MiB that are planned; the system is short of memory"
