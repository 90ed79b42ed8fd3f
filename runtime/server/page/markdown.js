/** The blocks of Markdown, as a tree of plain objects. A text that is not finished is read as far as it goes. */

import { inlines } from "./inline.js";

const MOST_DEEP = 8; // lists and quotations within each other; deeper ones are paragraphs
const MOST_COLUMNS = 32;
// No expression has two parts in a row that match the same characters: their time would grow with the square of a line.
const FENCE = /^[ \t]*(`{3,}|~{3,}(?!~))([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^[ \t]*(?:[-*+]|(\d{1,9})[.)])(?=[ \t]|$)/;
const DIVIDER = /^\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?$/; // without blanks around it

/**
 * Return the blocks of a text.
 *
 * Every block has `kind`, and `start` and `end`, its place in the source. The kinds and their other members are: "heading"
 * (level, children), "paragraph" (children), "code" (language, lines), "rule", "quote" (blocks), "list" (first: the number
 * it begins with, null without numbers; items: lists of blocks) and "table" (align, head, rows: cells of nodes). Children
 * are nodes of `inline.js`.
 */
export function blocks(source) {
  let at = 0;
  const lines = source.split("\n").map((text) => {
    const line = { text: text.endsWith("\r") ? text.slice(0, -1) : text, at };
    at += text.length + 1;
    return line;
  });
  return blocksOf(lines, 0);
}

function blocksOf(lines, depth) {
  const found = [];
  for (let at = 0; at < lines.length; ) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const { block, end } = blockAt(lines, at, depth);
    const last = lines[end - 1];
    found.push({ ...block, start: lines[at].at, end: last.at + last.text.length });
    at = end;
  }
  return found;
}

/** Return the block that begins at a line, and the number of the line after it. */
function blockAt(lines, at, depth) {
  const { text } = lines[at];
  if (FENCE.test(text)) return codeAt(lines, at);
  if (HEADING.test(text)) return { block: heading(lines[at]), end: at + 1 };
  if (RULE.test(text)) return { block: { kind: "rule" }, end: at + 1 };
  if (depth < MOST_DEEP && QUOTE.test(text)) return quoteAt(lines, at, depth);
  if (depth < MOST_DEEP && ITEM.test(text)) return listAt(lines, at, depth);
  return tableAt(lines, at) ?? paragraphAt(lines, at, depth);
}

function isBlank(line) {
  return line.text.trim() === "";
}

/** Return the width of the blanks that a text begins with, where a tab counts as four. */
function indent(text) {
  let width = 0;
  for (const character of text) {
    if (character === " ") width += 1;
    else if (character === "\t") width += 4;
    else break;
  }
  return width;
}

/** Return a line without so many blanks at its beginning, or as many as it has. */
function unindented(line, width) {
  let at = 0;
  for (let left = width; left > 0 && " \t".includes(line.text[at] ?? "-"); at += 1) left -= line.text[at] === " " ? 1 : 4;
  return { text: line.text.slice(at), at: line.at + at };
}

/** Return a block of code, which ends with the text if its fence is never closed. */
function codeAt(lines, at) {
  const [, fence, info] = FENCE.exec(lines[at].text);
  const width = indent(lines[at].text);
  const inside = [];
  let end = at + 1;
  for (; end < lines.length; end += 1) {
    const [, closing, rest] = FENCE.exec(lines[end].text) ?? [null, "", "x"];
    if (closing[0] === fence[0] && closing.length >= fence.length && rest.trim() === "") break;
    inside.push(unindented(lines[end], width));
  }
  const language = info.trim().split(/\s/, 1)[0].slice(0, 40);
  return { block: { kind: "code", language, lines: inside }, end: Math.min(end + 1, lines.length) };
}

function heading(line) {
  const [mark, level] = HEADING.exec(line.text);
  const rest = line.text.slice(mark.length).trimEnd();
  let end = rest.length;
  while (end > 0 && rest[end - 1] === "#") end -= 1; // "## Title ##"
  const text = end === 0 || " \t".includes(rest[end - 1]) ? rest.slice(0, end).trimEnd() : rest;
  return { kind: "heading", level: level.length, children: inlines([{ text, at: line.at + mark.length }]) };
}

function quoteAt(lines, at, depth) {
  const inside = [];
  let end = at;
  for (; end < lines.length && QUOTE.test(lines[end].text); end += 1) {
    const width = QUOTE.exec(lines[end].text)[0].length;
    inside.push({ text: lines[end].text.slice(width), at: lines[end].at + width });
  }
  return { block: { kind: "quote", blocks: blocksOf(inside, depth + 1) }, end };
}

/** Return a list. A line belongs to an item if it is indented as the item's text is, or by two blanks more than its mark. */
function listAt(lines, at, depth) {
  const [, number] = ITEM.exec(lines[at].text);
  const isSame = (text) => {
    const match = ITEM.exec(text);
    return match !== null && !RULE.test(text) && (match[1] === undefined) === (number === undefined);
  };
  const items = [];
  let end = at;
  while (end < lines.length && isSame(lines[end].text)) {
    const item = itemAt(lines, end);
    items.push(blocksOf(item.lines, depth + 1));
    end = item.end;
    let next = end;
    while (next < lines.length && isBlank(lines[next])) next += 1;
    if (next < lines.length && isSame(lines[next].text)) end = next; // blanks between the items of one list
  }
  return { block: { kind: "list", first: number === undefined ? null : Number(number), items }, end };
}

function itemAt(lines, at) {
  const { text } = lines[at];
  const outer = indent(text);
  const mark = ITEM.exec(text)[0].length;
  const blanks = indent(text.slice(mark));
  const width = outer + (mark - (text.length - text.trimStart().length)) + (blanks > 4 ? 1 : Math.max(1, blanks));
  const first = { text: text.slice(mark), at: lines[at].at + mark };
  const inside = [unindented(first, blanks > 4 ? 1 : blanks)];
  let end = at + 1;
  let last = end; // after the last line that is not blank
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    if (isBlank(line)) {
      inside.push({ text: "", at: line.at });
      continue;
    }
    const isInside = indent(line.text) >= Math.min(width, outer + 2);
    const isContinued = end === last && !startsBlock(line.text) && !ITEM.test(line.text);
    if (!isInside && !isContinued) break;
    inside.push(unindented(line, width));
    last = end + 1;
  }
  return { lines: inside.slice(0, last - at), end: last };
}

/** Return true for a line that ends a paragraph because something else begins. */
function startsBlock(text, depth = 0) {
  if (FENCE.test(text) || HEADING.test(text) || RULE.test(text)) return true;
  if (depth >= MOST_DEEP) return false;
  const item = ITEM.exec(text);
  return QUOTE.test(text) || (item !== null && item[0].length < text.trimEnd().length && (item[1] ?? "1") === "1");
}

function tableAt(lines, at) {
  const divider = lines[at + 1];
  if (!lines[at].text.includes("|") || !divider?.text.includes("-") || !DIVIDER.test(divider.text.trim())) return null;
  const head = cells(lines[at]);
  const align = cells(divider).map(({ text }) => {
    const [left, right] = [text.startsWith(":"), text.endsWith(":")];
    return right ? (left ? "center" : "end") : "start";
  });
  if (head.length !== align.length || head.length > MOST_COLUMNS) return null;
  let end = at + 2;
  const rows = [];
  for (; end < lines.length && !isBlank(lines[end]) && lines[end].text.includes("|"); end += 1) {
    const row = cells(lines[end]);
    if (row.length > head.length) row.splice(head.length - 1, row.length, joined(row.slice(head.length - 1), lines[end]));
    rows.push(head.map((_, column) => (row[column] ? inlines([row[column]]) : [])));
  }
  return { block: { kind: "table", align, head: head.map((cell) => inlines([cell])), rows }, end };
}

/** Return the last cells of a row as one: a row with too many of them loses nothing. */
function joined(parts, line) {
  const begin = parts[0].at - line.at;
  return { text: line.text.slice(begin).trim().replace(/\|$/, "").trimEnd(), at: parts[0].at };
}

/** Return the cells of a line. A bar after a backslash is text. */
function cells(line) {
  const found = [];
  let start = 0;
  const add = (end) => {
    const raw = line.text.slice(start, end);
    found.push({ text: raw.trim(), at: line.at + start + (raw.length - raw.trimStart().length) });
  };
  for (let at = 0; at < line.text.length; at += 1) {
    if (line.text[at] === "\\") at += 1;
    else if (line.text[at] === "|") {
      add(at);
      start = at + 1;
    }
  }
  add(line.text.length);
  if (found.length > 1 && found[0].text === "") found.shift();
  if (found.length > 1 && found.at(-1).text === "") found.pop();
  return found;
}

function paragraphAt(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && !isBlank(lines[end]) && !startsBlock(lines[end].text, depth) && !tableAt(lines, end)) end += 1;
  return { block: { kind: "paragraph", children: inlines(lines.slice(at, end).map(trimmed)) }, end };
}

function trimmed(line) {
  const text = line.text.trimStart();
  return { text: text.trimEnd(), at: line.at + line.text.length - text.length };
}
