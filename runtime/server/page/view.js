/** The page's view of Markdown, made of elements: no text is ever read as HTML. */

import { blocks } from "./markdown.js";

const COPIED_MS = 1500;

/** Return a new element with a class and a text. */
export function element(name, className = "", text = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

/** Return a button that calls a function; `label` says more than its text to a screen reader. */
export function button(text, action, label = "") {
  const made = element("button", "", text);
  made.type = "button";
  if (label) made.setAttribute("aria-label", label);
  made.addEventListener("click", action);
  return made;
}

/** Copy a text. The clipboard is closed to pages without TLS of other machines, where a selection can still be copied. */
export async function copyText(text) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // A browser may refuse this and allow the other way.
    }
  }
  const field = element("textarea", "hidden");
  field.value = text;
  const before = document.activeElement;
  document.body.append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  before?.focus();
  return isCopied;
}

/** Return a button that copies the text that a function returns, and says whether it did. */
export function copyButton(text, label) {
  const made = button("Copy", async () => {
    made.textContent = (await copyText(text())) ? "Copied" : "Not copied: select the text";
    setTimeout(() => (made.textContent = "Copy"), COPIED_MS);
  }, label);
  return made;
}

/** A Markdown text on the page that may grow. Blocks that did not change keep their elements, and so the user's selection. */
export class MarkdownView {
  #sources = [];

  /** @param {HTMLElement} target element of the text. */
  constructor(target) {
    this.target = target;
  }

  /**
   * Show a text.
   *
   * @param {string} source the text.
   * @param {number[][]} marks begin and end of parts that are marked as accepted guesses, in order.
   */
  update(source, marks = []) {
    const found = blocks(source);
    const sources = found.map((block) => source.slice(block.start, block.end));
    let same = 0;
    while (same < sources.length && sources[same] === this.#sources[same]) same += 1;
    while (this.target.childNodes.length > same) this.target.lastChild.remove();
    for (const block of found.slice(same)) this.target.append(blockElement(block, marks));
    this.#sources = sources;
  }
}

function blockElement(block, marks) {
  switch (block.kind) {
    case "heading":
      return filled(`h${Math.min(6, block.level + 2)}`, block.children, marks); // the page has two levels above
    case "code":
      return codeElement(block, marks);
    case "rule":
      return element("hr");
    case "quote":
      return around("blockquote", block.blocks, marks);
    case "list":
      return listElement(block, marks);
    case "table":
      return tableElement(block, marks);
    default:
      return filled("p", block.children, marks);
  }
}

function around(name, inside, marks) {
  const made = element(name);
  for (const block of inside) made.append(blockElement(block, marks));
  return made;
}

function listElement(block, marks) {
  const list = element(block.first === null ? "ul" : "ol");
  if (block.first !== null) list.start = block.first;
  for (const item of block.items) list.append(around("li", item, marks));
  return list;
}

function codeElement(block, marks) {
  const text = () => block.lines.map((line) => line.text).join("\n");
  const box = element("div", "code");
  const bar = element("div", "bar");
  bar.append(element("span", "", block.language || "Code"), copyButton(text, "Copy this code"));
  const pre = element("pre");
  pre.tabIndex = 0; // long lines are scrolled with the keyboard
  pre.setAttribute("role", "region");
  pre.setAttribute("aria-label", block.language ? `Code, ${block.language}` : "Code");
  const code = element("code");
  block.lines.forEach((line, index) => code.append(index ? "\n" : "", ...marked(line, marks)));
  pre.append(code);
  box.append(bar, pre);
  return box;
}

function tableElement(block, marks) {
  const scroll = element("div", "table");
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", "Table");
  const row = (name, cells) => {
    const line = element("tr");
    cells.forEach((cell, column) => {
      const made = filled(name, cell, marks);
      made.className = block.align[column];
      line.append(made);
    });
    return line;
  };
  const [table, head, body] = [element("table"), element("thead"), element("tbody")];
  head.append(row("th", block.head));
  for (const cells of block.rows) body.append(row("td", cells));
  table.append(head, body);
  scroll.append(table);
  return scroll;
}

function filled(name, nodes, marks) {
  const made = element(name);
  for (const node of nodes) made.append(...nodeElements(node, marks));
  return made;
}

function nodeElements(node, marks) {
  if (node.kind === "text") return marked(node, marks);
  if (node.kind === "break") return [element("br")];
  if (node.kind === "link") return linkElements(node, marks);
  if (node.kind !== "code") return [filled(node.kind, node.children, marks)];
  const code = element("code");
  code.append(...marked(node, marks));
  return [code];
}

/** Return a link to another page, with the address that it leads to if its text says something else. */
function linkElements(node, marks) {
  const link = filled("a", node.children, marks);
  link.href = node.href;
  link.target = "_blank";
  link.rel = "noopener noreferrer nofollow";
  const shown = link.textContent.trim();
  const isSaid = [node.href, node.href.replace(/\/$/, "")].includes(shown);
  return isSaid ? [link] : [link, element("span", "target", ` (${node.href})`)];
}

/** Return a text with elements around the parts that are marked. */
function marked({ text, at }, marks) {
  const parts = [];
  let done = 0;
  for (let index = firstAfter(marks, at); index < marks.length && marks[index][0] < at + text.length; index += 1) {
    const [begin, end] = [Math.max(done, marks[index][0] - at), Math.min(text.length, marks[index][1] - at)];
    if (begin > done) parts.push(text.slice(done, begin));
    parts.push(element("span", "guessed", text.slice(begin, end)));
    done = end;
  }
  if (done < text.length) parts.push(text.slice(done));
  return parts;
}

/** Return the number of the first mark that ends after a place. */
function firstAfter(marks, at) {
  let [low, high] = [0, marks.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (marks[middle][1] > at) high = middle;
    else low = middle + 1;
  }
  return low;
}
