/** The inline part of Markdown: code, links, bold, italic and struck text, as a tree of plain objects. */

// Bounds that keep the work linear in the text, whatever it is.
const MOST_OPEN = 32; // runs of * _ ~ that wait for their partner
const LINK =
  /!?\[((?:[^[\]\\\n]|\\.){0,1000})\]\([ \t]{0,9}<?((?:[^\s<>()]|\([^\s<>()]{0,500}\)){1,2000})>?(?:[ \t]{1,9}"[^"\n]{0,500}")?[ \t]{0,9}\)/y;
const ADDRESS = /https?:\/\/[^\s<>"'`\\]{1,2000}/iy;
const AFTER_ADDRESS = new Set(".,;:!?)]}*_~");
const PLAIN = /[^\\`*_~[!h\n]+/y;
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const WORD = /[\p{L}\p{N}]/u;

/** Return the address of a link if it is one of the web, as a browser spells it; null for any other scheme, or with a password. */
export function webAddress(text) {
  let url;
  try {
    url = new URL(text);
  } catch {
    return null;
  }
  const isWeb = url.protocol === "http:" || url.protocol === "https:";
  return isWeb && url.username === "" && url.password === "" ? url.href : null;
}

/**
 * Return the nodes of some lines.
 *
 * A node is {kind: "text" or "code", text, at}, where `at` is the place of its text in the source; {kind: "break"};
 * {kind: "link", href, children}; or {kind: "strong", "em" or "del", children}.
 *
 * @param {{text: string, at: number}[]} lines lines without their ends, and their places in the source.
 */
export function inlines(lines) {
  const text = lines.map((line) => line.text).join("\n");
  const tokens = tokensOf(text, lines);
  pair(tokens);
  return treeOf(tokens);
}

/** Return the text, code, links and breaks, and the runs of * _ ~ that may open or close something. */
function tokensOf(text, lines, hasLinks = true) {
  const tokens = [];
  const closing = codeRuns(text);
  let line = 0;
  let lineStart = 0; // place of the line in `text`
  let start = 0; // start of the text that is no token yet
  const place = (at) => lines[line].at + at - lineStart;
  const flush = (end) => {
    if (end > start) tokens.push({ kind: "text", text: text.slice(start, end), at: place(start) });
  };
  for (let at = 0; at < text.length; ) {
    PLAIN.lastIndex = at;
    at += PLAIN.exec(text)?.[0].length ?? 0;
    if (at >= text.length) break;
    const token = tokenAt(text, at, closing, hasLinks, place);
    if (token === null) {
      at += 1;
      continue;
    }
    flush(at);
    tokens.push(token.node);
    at = token.end;
    // A span of code may have line ends in it.
    for (let next = text.indexOf("\n", lineStart); next >= 0 && next < at; next = text.indexOf("\n", lineStart)) {
      line += 1;
      lineStart = next + 1;
    }
    start = at;
  }
  flush(text.length);
  return tokens;
}

/** Return the token that begins at a place, and its end; null if a character there is nothing but text. */
function tokenAt(text, at, closing, hasLinks, place) {
  const character = text[at];
  if (character === "\n") return { node: { kind: "break", at: place(at) }, end: at + 1 };
  if (character === "\\") {
    if (!PUNCTUATION.test(text[at + 1] ?? "")) return null;
    return { node: { kind: "text", text: text[at + 1], at: place(at + 1) }, end: at + 2 };
  }
  if (character === "`") return codeAt(text, at, closing, place);
  if ("*_~".includes(character)) return runAt(text, at, place);
  if (!hasLinks) return null;
  if (character === "h") return addressAt(text, at, place);
  return linkAt(text, at, place);
}

/** Return the places of the runs of backquotes, by their length, in reverse order. */
function codeRuns(text) {
  const runs = new Map();
  for (const match of text.matchAll(/`+/g)) {
    const length = match[0].length;
    if (!runs.has(length)) runs.set(length, []);
    runs.get(length).push(match.index);
  }
  for (const places of runs.values()) places.reverse();
  return runs;
}

function codeAt(text, at, closing, place) {
  let length = 1;
  while (text[at + length] === "`") length += 1;
  const places = closing.get(length) ?? []; // none for the rest of a run after an escaped backquote
  while (places.length && places.at(-1) <= at) places.pop();
  const begin = at + length;
  if (!places.length) return { node: { kind: "text", text: text.slice(at, begin), at: place(at) }, end: begin };
  const end = places.at(-1);
  const inside = text.slice(begin, end).replaceAll("\n", " ");
  const isPadded = inside.length > 2 && inside.startsWith(" ") && inside.endsWith(" ") && inside.trim() !== "";
  const shift = isPadded ? 1 : 0;
  const node = { kind: "code", text: inside.slice(shift, inside.length - shift), at: place(begin + shift) };
  return { node, end: end + length };
}

function runAt(text, at, place) {
  const character = text[at];
  let count = 1;
  while (text[at + count] === character) count += 1;
  const end = at + count;
  const before = text[at - 1] ?? " ";
  const after = text[end] ?? " ";
  const isUsed = character === "~" ? count === 2 : count <= 3;
  if (!isUsed) return { node: { kind: "text", text: text.slice(at, end), at: place(at) }, end };
  const isScore = character === "_"; // snake_case is a word
  const node = {
    kind: "run",
    character,
    count,
    at: place(at),
    canOpen: !/\s/.test(after) && !(isScore && WORD.test(before)),
    canClose: !/\s/.test(before) && !(isScore && WORD.test(after)),
    opens: [],
    closes: [],
  };
  return { node, end };
}

function addressAt(text, at, place) {
  if (WORD.test(text[at - 1] ?? " ")) return null;
  ADDRESS.lastIndex = at;
  let found = ADDRESS.exec(text)?.[0];
  if (found === undefined) return null;
  const closes = (part) => part.endsWith(")") && part.includes("(");
  while (AFTER_ADDRESS.has(found.at(-1)) && !closes(found)) found = found.slice(0, -1);
  const href = webAddress(found);
  if (href === null) return null;
  return { node: { kind: "link", href, children: [{ kind: "text", text: found, at: place(at) }] }, end: at + found.length };
}

/** Return a link. A picture is one, too: nothing is loaded from elsewhere. */
function linkAt(text, at, place) {
  LINK.lastIndex = at;
  const match = LINK.exec(text);
  const href = match && webAddress(match[2]);
  if (!href) return null;
  const begin = at + (text[at] === "!" ? 2 : 1);
  const inside = tokensOf(match[1], [{ text: match[1], at: place(begin) }], false);
  pair(inside);
  return { node: { kind: "link", href, children: treeOf(inside) }, end: LINK.lastIndex };
}

/**
 * Decide which runs begin and end bold, italic and struck text. One of two characters is no partner of a single one, so that a
 * bold text whose end is half written is not shown as italic. A run that finds no partner stays text.
 */
function pair(tokens) {
  const open = [];
  const floors = new Map(); // character and count of a run -> place in `open` below which it has no partner
  for (const run of tokens) {
    if (run.kind !== "run") continue;
    while (run.canClose && run.count > 0) {
      const key = run.character + run.count;
      const floor = floors.get(key) ?? 0;
      let at = open.length - 1;
      while (at >= floor && !arePartners(open[at], run)) at -= 1;
      if (at < floor) {
        floors.set(key, open.length);
        break;
      }
      const size = Math.min(2, run.count, open[at].count);
      const kind = run.character === "~" ? "del" : size === 2 ? "strong" : "em";
      open[at].opens.push(kind);
      run.closes.push(kind);
      open[at].count -= size;
      run.count -= size;
      open.length = open[at].count > 0 ? at + 1 : at;
      // The rest of the opener may be a partner of runs that have found none so far.
      for (const [other, height] of floors) floors.set(other, Math.min(height, at));
    }
    if (!run.canOpen || run.count === 0) continue;
    open.push(run);
    if (open.length > MOST_OPEN) {
      open.shift();
      for (const [other, height] of floors) floors.set(other, Math.max(0, height - 1));
    }
  }
}

function arePartners(one, other) {
  return one.character === other.character && (one.count === other.count || one.count === 3 || other.count === 3);
}

function treeOf(tokens) {
  const open = [[]];
  for (const token of tokens) {
    if (token.kind !== "run") {
      open.at(-1).push(token);
      continue;
    }
    for (let left = token.closes.length; left > 0; left -= 1) open.pop();
    if (token.count) open.at(-1).push({ kind: "text", text: token.character.repeat(token.count), at: token.at });
    for (const kind of token.opens.reverse()) {
      const node = { kind, children: [] };
      open.at(-1).push(node);
      open.push(node.children);
    }
  }
  return open[0];
}
