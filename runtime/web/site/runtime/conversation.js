/** A conversation: its turns, the prompt made of them, and the choice of the turns that fit the context. */

import { SiteError } from "./errors.js";

// The shares of the context are those of edgedec's runtime/session/conversation.py, so that both drop the same turns.
const NEARLY_FULL = 0.8;
const HALF = 0.5;
const CHARACTERS_PER_TOKEN = 32; // upper bound of a text's average; a longer text is not tokenized

/** The turns of one conversation; without a template the prompt is plain text, a line for each message and each answer. */
export class Conversation {
  constructor(tokenizer, template, size) {
    this.tokenizer = tokenizer;
    this.template = template;
    this.size = size; // size of the context, in tokens
    this.turns = [];
  }

  /** Return the ids of the prompt that ends with a message, and the number of turns that were dropped for it. */
  ask(message) {
    const ids = this.#encode(this.turns, message);
    if (!this.turns.length || fits(ids, Math.trunc(NEARLY_FULL * this.size))) {
      return { ids: this.#require(ids, message), dropped: 0 };
    }
    this.#require(this.#encode([], message), message);
    const dropped = this.#leastToDrop(message);
    this.turns = this.turns.slice(dropped);
    return { ids: this.#require(this.#encode(this.turns, message), message), dropped };
  }

  /** Append a turn. */
  answered(message, answer) {
    this.turns.push({ message, answer });
  }

  /** Remove all turns from a number on. */
  cut(count) {
    this.turns = this.turns.slice(0, count);
  }

  #leastToDrop(message) {
    for (const share of [HALF, NEARLY_FULL]) {
      const most = Math.trunc(share * this.size);
      const fitsFrom = (count) => fits(this.#encode(this.turns.slice(count), message), most);
      let low = 1;
      let high = this.turns.length; // bisection, because more turns make a longer prompt
      while (low < high) {
        const middle = (low + high) >> 1;
        if (fitsFrom(middle)) high = middle;
        else low = middle + 1;
      }
      if (fitsFrom(low)) return low;
    }
    return this.turns.length;
  }

  #require(ids, message) {
    if (fits(ids, this.size - 1)) return ids;
    const length = ids ? `${ids.length} tokens` : `${message.length} characters`;
    throw new SiteError(
      `the message takes ${length}, and the context holds ${this.size} tokens and needs one for the answer; shorten it`,
    );
  }

  #encode(turns, message) {
    const messages = turns.flatMap((turn) => [
      { role: "user", content: turn.message },
      { role: "assistant", content: turn.answer },
    ]);
    messages.push({ role: "user", content: message });
    const text = this.template
      ? this.template.render(messages)
      : messages.map((entry) => `${entry.content}\n`).join("");
    if (text.length > this.size * CHARACTERS_PER_TOKEN) return null;
    return this.template ? this.tokenizer.encodeRendered(text) : this.tokenizer.encode(text);
  }
}

function fits(ids, most) {
  return ids !== null && ids.length <= most;
}
