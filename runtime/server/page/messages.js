/** The messages of the branch that is shown, with their buttons. */

import { button, copyButton, element, MarkdownView } from "./view.js";

const NEAR_END = 40; // pixels from the end of the log within which it follows the text
const SHARE = 4; // the time between two drawings of a text is at least so many times that of a drawing

/** The log of messages. */
export class Messages {
  #last = null; // the article that grows
  #timer = 0;

  /**
   * @param {HTMLElement} log element of the messages.
   * @param {object} actions functions `edit`, `cancelEdit`, `submitEdit`, `retry` and `choose`, which get a message.
   */
  constructor(log, actions) {
    this.log = log;
    this.actions = actions;
    this.marksGuesses = true;
  }

  /**
   * Show messages.
   *
   * @param {object[]} messages the branch.
   * @param {object} state `isBusy`: an answer is being written here; `editing`: {id, text} of the message that is edited, or
   *   null; `versions`: a function that returns all versions of a message.
   */
  draw(messages, state) {
    this.#stopTimer();
    for (const article of [...this.log.querySelectorAll("article")]) article.remove();
    this.#last = null;
    messages.forEach((message, at) => {
      const isLast = at === messages.length - 1;
      const article = this.#article(message, at + 1, { ...state, isLast });
      this.log.append(article.element);
      article.update();
      if (isLast) this.#last = article;
    });
    this.log.setAttribute("aria-busy", String(state.isBusy));
  }

  /** Show what was added to the last message, soon. */
  grow() {
    this.#timer ||= setTimeout(() => this.flush(), this.#pause);
  }

  #pause = 16;

  /** Show what was added to the last message now. */
  flush() {
    this.#stopTimer();
    const begin = performance.now();
    const isFollowing = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < NEAR_END;
    this.#last?.update();
    if (isFollowing) this.toEnd();
    this.#pause = Math.max(16, SHARE * (performance.now() - begin));
  }

  toEnd() {
    this.log.scrollTop = this.log.scrollHeight;
  }

  #stopTimer() {
    clearTimeout(this.#timer);
    this.#timer = 0;
  }

  #article(message, number, state) {
    const isUser = message.role === "user";
    const article = element("article", message.role);
    const head = element("div", "head");
    head.append(element("h2", "", isUser ? "You" : "Model"));
    article.append(head);
    if (state.editing?.id === message.id) {
      article.append(...this.#editor(message, state));
      return { element: article, update: () => {} };
    }
    const text = element("div", "text");
    text.dir = "auto";
    const figures = element("div", "figures");
    const thinking = isUser ? null : thinkingElement();
    if (thinking) article.append(thinking.box);
    article.append(text, ...(isUser ? [] : [figures]));
    (isUser ? head : article).append(this.#tools(message, number, state)); // an answer is read before something is done with it
    const view = isUser ? null : new MarkdownView(text);
    const update = () => {
      if (isUser) {
        text.textContent = message.content;
        return;
      }
      thinking.update(message);
      view.update(message.content, this.marksGuesses ? message.guessed : []);
      figures.textContent = message.figures ?? "";
    };
    return { element: article, update };
  }

  #tools(message, number, state) {
    const tools = element("div", "tools");
    if (state.isBusy) return tools;
    const { actions } = this;
    const all = state.versions(message);
    if (all.length > 1) {
      const at = all.indexOf(message);
      const step = (by, sign, label) => {
        const made = button(sign, () => actions.choose(all[at + by]), `${label} version of message ${number}`);
        made.disabled = !all[at + by];
        return made;
      };
      const count = element("span", "version", `${at + 1} of ${all.length}`);
      tools.append(step(-1, "‹", "Earlier"), count, step(1, "›", "Later"));
    }
    if (message.role === "user") {
      tools.append(button("Edit", () => actions.edit(message), `Edit message ${number}`));
      if (state.isLast) tools.append(button("Try again", () => actions.retry(message), "Ask for an answer again"));
    } else {
      tools.append(copyButton(() => message.content, `Copy message ${number}`));
      if (state.isLast) tools.append(button("Try again", () => actions.retry(message), "Try the last answer again"));
    }
    return tools;
  }

  #editor(message, { editing }) {
    const { actions } = this;
    const field = element("textarea");
    field.id = "edited";
    field.value = editing.text;
    field.setAttribute("aria-label", "Edited message");
    field.addEventListener("input", () => (editing.text = field.value));
    const submit = () => actions.submitEdit(message, field.value);
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        submit();
      }
    });
    const tools = element("div", "tools");
    const send = button("Send", submit, "Send the edited message");
    send.classList.add("strong");
    tools.append(send, button("Cancel", () => actions.cancelEdit(message), "Leave the message as it was"));
    return [field, tools];
  }
}

/** Return the folded part of an answer in which the model thinks. It is a plain text. */
function thinkingElement() {
  const box = element("details", "thinking");
  const text = element("div", "thoughts");
  text.dir = "auto";
  box.append(element("summary", "", "Thinking"), text);
  const update = ({ reasoning }) => {
    box.hidden = !reasoning;
    if (text.textContent !== (reasoning ?? "")) text.textContent = reasoning ?? "";
  };
  return { box, update };
}
