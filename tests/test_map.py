"""Check the map: docs/architecture.md, and the steps to which its rows lead.

A row is one line: a goal, the place to open first, and the section with the steps, the last of which names the test that
proves the change. A paragraph of the code map is about one folder, and its "never imports" are compared with the imports.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.test_docs import anchors
from tests.test_layering import Imports, project_imports, within

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGE = DOCS / "architecture.md"
MOST = 110  # characters of a row
HEADINGS = ["Models", "Writing text", "Serving", "Hardware"]
STEPS = "Changing this"  # heading of the sections to which rows lead
TOPS = (".ci", "benchmarks", "boards", "docs", "edgedec", "examples", "hw", "quantize", "runtime", "sim", "tests")
CODE = frozenset([".cpp", ".hpp", ".js", ".py"])
DEEP = (
    "boards",
    "edgedec",
    "hw",
    "quantize",
    "runtime",
    "runtime/kernels",
    "sim",
)  # folders whose own folders have a paragraph each

ROW = re.compile(r"\| [^|]+ \| \[`([^`]+)`\]\(([\w-]+\.md)(?:#([\w-]+))?\) \|")
PLACE = re.compile(rf"(?:{'|'.join(map(re.escape, TOPS))})/[\w./*-]*")
BARE = re.compile(r"\w+\.(?:cpp|hpp|js|md|py)")
PARAGRAPH = re.compile(r"\*\*`([^`]+/)`\*\*: ")
RULE = re.compile(r"never imports ((?:`[^`]+`(?:, | or )?)+)")
PYTEST = re.compile(r"`\.venv/bin/pytest ([^`]+)`")
# A class, a constant, or a name of several words, which code defines; not a name of a file.
NAME = re.compile(r"((?=[\w.]*[A-Z_])[A-Za-z_][\w.]*)(?<!\.cpp)(?<!\.hpp)(?<!\.md)(?<!\.py)(?:\(.*)?$")
INVENTED = re.compile(r"\b(?:NAME|KIND)\b")  # stand-ins in the path of a file that is to be written


def parts(text: str) -> list[tuple[int, str, str]]:
    """Return the sections of a page as (level, title, text), each without those below it."""
    cuts = [*re.finditer(r"^(#{1,6}) +(.+)$", text, re.MULTILINE)]
    ends = [*(cut.start() for cut in cuts[1:]), len(text)]
    return [(len(cut[1]), cut[2], text[cut.end() : end]) for cut, end in zip(cuts, ends, strict=True)]


def below(text: str, title: str) -> list[tuple[str, str]]:
    """Return the section of a title and those below it as (title, text); nothing if the page has no such section."""
    found: list[tuple[str, str]] = []
    level = 0
    for depth, name, body in parts(text):
        if name == title and not level:
            level = depth
        elif level and depth <= level:
            break
        if level:
            found.append((name, body))
    return found


def spans(text: str) -> Iterator[str]:
    """Yield the words within spans of code."""
    for span in re.findall(r"`([^`]+)`", text):
        yield from span.split()


def lost(text: str, root: Path, folder: str = "") -> list[str]:
    """Return the paths of a text that do not exist, from the root or from ``folder``, and names of files without a path."""
    faults = []
    for word in spans(text):
        here = f"{folder}{word}"
        if INVENTED.search(word):
            continue
        if folder and (BARE.fullmatch(word) or re.fullmatch(r"\w+/", word)) and (root / here).exists():
            continue
        if BARE.fullmatch(word) and not (root / word).exists():
            faults.append(f"{word}: a name without its path")
        elif PLACE.fullmatch(word) and not any(root.glob(word.rstrip("/"))):
            faults.append(f"{word} does not exist")
    return faults


def unknown(text: str, root: Path) -> list[str]:
    """Return the names of code in a text that occur in none of the files, and in no file of the folders, that it names."""
    paths = [path for word in spans(text) if PLACE.fullmatch(word) for path in root.glob(word.rstrip("/"))]
    files = [file for path in paths for file in ([path] if path.is_file() else path.iterdir()) if file.suffix in CODE]
    code = "\n".join(file.read_text("utf-8") for file in files)
    names = [match[1] for word in spans(text) if (match := NAME.match(word)) and not INVENTED.search(word)]
    return [f"{name} is in no file that is named here" for name in names if name.split(".")[-1] not in code]


def lists(text: str) -> list[list[str]]:
    """Return the numbered lists of a text, each as its items."""
    found: list[list[str]] = []
    for item in re.findall(r"^(\d+\. .*(?:\n {3}.*)*)", text, re.MULTILINE):
        if item.startswith("1. ") or not found:
            found.append([])
        found[-1].append(item)
    return found


def unproved(text: str, root: Path) -> list[str]:
    """Return the faults of the numbered lists of a text: there is none, or one does not end with a test that exists."""
    found = lists(text)
    faults = [] if found else ["has no numbered steps"]
    for items in found:
        if [item.split(".")[0] for item in items] != [str(n + 1) for n in range(len(items))]:
            faults.append(f"the steps from {items[0][:40]!r} on are not numbered in order")
        paths = [path for command in PYTEST.findall(items[-1]) for path in command.split()]
        if not paths:
            faults.append(f"the last step names no test: {items[-1][:60]!r}")
        faults += [f"{path} is no test" for path in paths if path[:6] != "tests/" or not (root / path).exists()]
    return faults


def wrong_rows(text: str, root: Path) -> list[str]:
    """Return the faults of the rows of a map whose pages lie in ``docs`` of the root."""
    sections = below(text, "Where is it?")
    faults = [] if [title for title, _ in sections[1:]] == HEADINGS else [f"the headings are not {HEADINGS}"]
    rows = [line for _, body in sections for line in body.splitlines() if line.startswith("| ")]
    for row in (row for row in rows if row != "| you want to | place and steps |"):
        if len(row) > MOST:
            faults.append(f"{len(row)} characters, of which {MOST} may be: {row}")
        if not (match := ROW.fullmatch(row)):
            faults.append(f"not a goal, a place and a door: {row}")
            continue
        place, page, anchor = match[1], root / "docs" / match[2], match[3]
        if not (root / place).exists():
            faults.append(f"{place} does not exist: {row}")
        if not page.exists() or (anchor and anchor not in anchors(page)):
            faults.append(f"the door leads nowhere: {row}")
    return faults


def doors(text: str) -> set[tuple[str, str]]:
    """Return (page, anchor) of the rows of a map; the anchor of a whole page is empty."""
    return {(match[2], match[3] or "") for match in ROW.finditer(text)}


def title_anchor(title: str) -> str:
    """Return the anchor of a heading that occurs once on its page."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def steps_faults(text: str, root: Path) -> list[str]:
    """Return the faults of a section of steps: of its lists, its paths, and its names of code."""
    return unproved(text, root) + lost(text, root) + unknown(text, root)


def wrong_steps(page: str, text: str, root: Path, rows: set[tuple[str, str]]) -> list[str]:
    """Return the faults of the steps on a page: paths, tests, and sections to which no row leads, or that rows lead past."""
    sections = below(text, STEPS)
    whole = [("", text)] if (page, "") in rows else [(title, body) for title, body in sections if lists(body)]
    faults = [f"{page} {title}: {fault}" for title, body in whole for fault in steps_faults(body, root)]
    found = {(page, title_anchor(title) if title else "") for title, _ in whole}
    wanted = {row for row in rows if row[0] == page}
    faults += [f"{page}: no row leads to #{anchor}" for _, anchor in sorted(found - wanted)]
    return faults + [f"{page}: #{anchor} is no section of steps" for _, anchor in sorted(wanted - found)]


def folders(root: Path) -> set[str]:
    """Return the folders that have a paragraph each."""
    inner = (
        child for top in DEEP for child in (root / top).iterdir() if child.is_dir() and child.name != "__pycache__"
    )
    return {f"{top}/" for top in TOPS} | {f"{child.relative_to(root).as_posix()}/" for child in inner}


def module_of(place: str) -> str:
    """Return the name by which a file or folder of the project is imported, or the name of another package."""
    if not PLACE.fullmatch(place):
        return place
    name = place.removesuffix(".py").rstrip("/").replace("/", ".")
    return name if within(name, "edgedec") else f"edgedec.{name}"


def paragraphs(text: str) -> dict[str, str]:
    """Return the paragraphs of the code map by their folders; one that begins otherwise is under its first words."""
    bodies = [" ".join(block.split()) for block in below(text, "The code map")[0][1].strip().split("\n\n")[1:]]
    return {(match[1] if (match := PARAGRAPH.match(body)) else body[:30]): body for body in bodies}


def broken_rules(rules: Mapping[str, str], imports: Imports) -> list[str]:
    """Return the imports that break a "never imports" of the paragraph of their folder."""
    owners = {module_of(folder): folder for folder in rules}
    faults = []
    for module, names in imports.items():
        above = [name for name in owners if within(module, name)]
        body = rules[owners[max(above, key=len)]] if above else ""
        banned = [module_of(place) for rule in RULE.findall(body) for place in re.findall(r"`([^`]+)`", rule)]
        faults += [
            f"{module}:{line} imports {name}, and the code map says that it never does"
            for name, line in names.items()
            if any(within(name, one) for one in banned)
        ]
    return faults


def wrong_code_map(text: str, root: Path, imports: Imports, wanted: set[str]) -> list[str]:
    """Return the faults of a code map: folders, paths, and rules that the imports break."""
    found = paragraphs(text)
    faults = [f"{name} has no paragraph" for name in sorted(wanted - found.keys())]
    faults += [f"{name} is no folder that has a paragraph" for name in sorted(found.keys() - wanted)]
    faults += [f"{name}: {fault}" for name, body in found.items() for fault in lost(body, root, name)]
    return faults + broken_rules(found, imports)


def test_rows_are_lines_that_lead_to_a_place_and_to_steps() -> None:
    text = PAGE.read_text("utf-8")
    assert len(doors(text)) > 40
    assert wrong_rows(text, ROOT) == []


def test_steps_end_with_a_test() -> None:
    rows = doors(PAGE.read_text("utf-8"))
    pages = sorted(DOCS.glob("*.md"))
    assert [fault for page in pages for fault in wrong_steps(page.name, page.read_text("utf-8"), ROOT, rows)] == []


def test_the_code_map_has_a_paragraph_for_each_folder_and_its_rules_hold() -> None:
    text = PAGE.read_text("utf-8")
    assert len(RULE.findall(" ".join(text.split()))) > 20
    assert wrong_code_map(text, ROOT, project_imports(ROOT), folders(ROOT)) == []


def test_every_other_place_on_the_page_exists() -> None:
    text = PAGE.read_text("utf-8")
    places = [word for word in spans(text) if PLACE.fullmatch(word)]
    assert len(places) > 150
    assert [place for place in places if not (ROOT / place).exists()] == []


# The checks see what they are for.

GUIDE = "# A\n\n## Changing this\n\n1. Open `runtime/a.py`.\n2. Prove it: `.venv/bin/pytest tests/test_a.py`.\n"
GOOD_ROW = "| do it | [`runtime/`](a.md#changing-this) |"


def map_of(*rows: str, headings: Sequence[str] = HEADINGS) -> str:
    tables = "\n".join(f"### {name}\n\n| you want to | place and steps |\n|---|---|\n" for name in headings)
    return f"# Map\n\n## Where is it?\n\n{tables}" + "\n".join(rows) + "\n\n## Else\n\n| no row | x |\n"


def make_root(folder: Path) -> Path:
    for top, name in (("docs", "a.md"), ("runtime", "a.py"), ("tests", "test_a.py")):
        (folder / top).mkdir()
        (folder / top / name).write_text(GUIDE)
    return folder


def test_planted_rows_are_found(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    assert wrong_rows(map_of(GOOD_ROW), root) == []
    planted = {
        "| do it | [`runtime/b.py`](a.md#changing-this) |": "runtime/b.py does not exist",
        "| do it | [`runtime/`](a.md#steps) |": "the door leads nowhere",
        "| do it | [`runtime/`](b.md) |": "the door leads nowhere",
        "| do it | `runtime/`, `runtime/a.py` |": "not a goal, a place and a door",
        "| do it | [`runtime/`](a.md) and [`tests/`](a.md) |": "not a goal, a place and a door",
        f"| do {'it ' * 30} | [`runtime/`](a.md#changing-this) |": "characters, of which 110 may be",
    }
    for row, fault in planted.items():
        faults = wrong_rows(map_of(GOOD_ROW, row), root)
        assert len(faults) == 1, row
        assert fault in faults[0]
    assert wrong_rows(map_of(GOOD_ROW, headings=HEADINGS[1:]), root) == [f"the headings are not {HEADINGS}"]


def test_planted_steps_are_found(tmp_path: Path) -> None:
    root, rows = make_root(tmp_path), {("a.md", "changing-this")}
    assert wrong_steps("a.md", GUIDE, root, rows) == []
    planted = [
        (GUIDE.replace("runtime/a.py", "runtime/b.py"), "runtime/b.py does not exist"),
        (GUIDE.replace("runtime/a.py", "b.py"), "b.py: a name without its path"),
        (GUIDE.replace("Open", "Open `Window` in"), "Window is in no file that is named here"),
        (GUIDE.replace("tests/test_a.py", "tests/test_b.py"), "tests/test_b.py is no test"),
        (GUIDE.replace("tests/test_a.py", "runtime/a.py"), "runtime/a.py is no test"),
        (GUIDE.replace(".venv/bin/pytest", "look at"), "the last step names no test"),
        (GUIDE.replace("2.", "3."), "not numbered in order"),
        (GUIDE + "\n1. And more.\n", "the last step names no test: '1. And more.'"),
        (GUIDE + "\n### More\n\n1. Prove it: `.venv/bin/pytest tests/test_a.py`.\n", "no row leads to #more"),
        ("# A\n\n## Changing this\n\nJust do it.\n", "#changing-this is no section of steps"),
    ]
    for text, fault in planted:
        assert any(fault in one for one in wrong_steps("a.md", text, root, rows)), fault
    assert wrong_steps("a.md", "# A\n\nJust do it.\n", root, {("a.md", "")}) == ["a.md : has no numbered steps"]
    assert wrong_steps("a.md", GUIDE, root, set()) == ["a.md: no row leads to #changing-this"]


def test_planted_faults_of_the_code_map_are_found(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    for name in ("hw/a.py", "edgedec/b.py"):
        (root / name).parent.mkdir()
        (root / name).touch()
    rules = "It never imports `hw/`, `edgedec/b.py` or\n`torch`."
    text = f"# M\n\n## The code map\n\nOf rules.\n\n**`runtime/`**: `a.py` runs. {rules}\n"
    clean: Imports = {"edgedec.runtime.a": {"edgedec.hwx": 1, "numpy": 2}, "edgedec.sim.a": {"torch": 1}}
    assert wrong_code_map(text, root, clean, {"runtime/"}) == []
    assert wrong_code_map(text, root, clean, {"runtime/", "hw/"}) == ["hw/ has no paragraph"]
    assert wrong_code_map(text, root, clean, set()) == ["runtime/ is no folder that has a paragraph"]
    renamed = text.replace("`a.py`", "`c.py`")
    assert wrong_code_map(renamed, root, clean, {"runtime/"}) == ["runtime/: c.py: a name without its path"]
    for name in ("edgedec.hw", "edgedec.hw.isa.x", "edgedec.b", "torch.nn"):
        faults = wrong_code_map(text, root, {"edgedec.runtime.a": {name: 7}}, {"runtime/"})
        assert faults == [f"edgedec.runtime.a:7 imports {name}, and the code map says that it never does"]
    # A folder with a paragraph of its own has its own rules.
    inner = text + "\n**`runtime/b/`**: b.\n"
    assert broken_rules(paragraphs(inner), {"edgedec.runtime.b.x": {"torch": 1}}) == []
