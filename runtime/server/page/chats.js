/** The list of conversations, and their files. */

import { asMarkdown, titleOf } from "./conversation.js";
import { button, element } from "./view.js";

const MOST_NAME = 60; // characters of a file's name

/** Let the browser save a text as a file. */
export function download(name, text, type) {
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Return the name of a file for a title: words of letters and digits. */
export function fileName(title, ending) {
  const words = title.normalize("NFC").replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, MOST_NAME).replace(/^-|-$/g, "");
  return `${words || "chat"}.${ending}`;
}

/** The list. */
export class ChatList {
  #open = null; // id whose buttons are shown
  #renaming = null; // id whose title is being written

  /**
   * @param {HTMLElement} list element of the list.
   * @param {Store} store the conversations.
   * @param {object} actions functions `open`, `rename` and `remove`, which get an id; `rename` also gets the title.
   */
  constructor(list, store, actions) {
    this.list = list;
    this.store = store;
    this.actions = actions;
  }

  /** Show the conversations; `current` is the id of the one that is shown. */
  draw(current) {
    const focus = this.list.contains(document.activeElement) ? document.activeElement.dataset.focus : "";
    const entries = this.store.list();
    this.current = current;
    this.list.replaceChildren(...entries.map((entry) => this.#item(entry)));
    if (!entries.length) this.list.append(element("li", "none", "No chats yet: they are kept in this browser once you send a message."));
    if (focus) this.list.querySelector(`[data-focus="${CSS.escape(focus)}"]`)?.focus();
  }

  /** Return true if a title is being written, so that the list should not be drawn anew. */
  get isRenaming() {
    return this.#renaming !== null;
  }

  #item(entry) {
    const item = element("li");
    if (this.#renaming === entry.id) {
      item.append(this.#nameForm(entry));
      return item;
    }
    const name = button(entry.title, () => this.actions.open(entry.id));
    name.className = "name";
    if (entry.id === this.current) name.setAttribute("aria-current", "true");
    if (entry.problem) name.disabled = true;
    const more = button("⋯", () => {
      this.#open = this.#open === entry.id ? null : entry.id;
      this.draw(this.current);
    }, `Actions for ${entry.title}`);
    more.setAttribute("aria-expanded", String(this.#open === entry.id));
    more.dataset.focus = `more-${entry.id}`;
    item.append(name, more);
    if (entry.problem) item.append(element("p", "problem", `It is left as it is: ${entry.problem}.`));
    if (!entry.isStored) item.append(element("p", "problem", "In this page only: it is not stored."));
    if (this.#open === entry.id) item.append(this.#tools(entry));
    return item;
  }

  #tools(entry) {
    const tools = element("div", "tools");
    const { actions, store } = this;
    if (entry.problem) {
      tools.append(button("Save as it is", () => download(fileName(entry.id, "txt"), store.raw(entry.id), "text/plain")));
    } else {
      const chat = () => store.get(entry.id);
      const saveJson = () => download(fileName(entry.title, "json"), store.exported([entry.id]).text, "application/json");
      const saveMarkdown = () => download(fileName(entry.title, "md"), asMarkdown(chat()), "text/markdown");
      tools.append(
        button("Rename", () => this.#rename(entry.id), `Rename ${entry.title}`),
        button("Save as JSON", saveJson, `Save ${entry.title} as JSON`),
        button("Save as Markdown", saveMarkdown, `Save ${entry.title} as Markdown`),
      );
    }
    tools.append(button("Delete", () => actions.remove(entry.id), `Delete ${entry.title}`));
    return tools;
  }

  #rename(id) {
    this.#renaming = id;
    this.draw(this.current);
    this.list.querySelector("input").select();
  }

  #nameForm(entry) {
    const form = element("form", "rename");
    const field = element("input");
    field.value = titleOf(this.store.get(entry.id));
    field.maxLength = 200;
    field.setAttribute("aria-label", "Title of the chat");
    const save = element("button", "strong", "Save");
    const end = () => {
      this.#renaming = null;
      this.draw(this.current);
      this.list.querySelector(`[data-focus="more-${CSS.escape(entry.id)}"]`)?.focus();
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.actions.rename(entry.id, field.value.trim());
      end();
    });
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      end();
    });
    form.append(field, save, button("Cancel", end, "Leave the title as it was"));
    return form;
  }
}
