/** A model that answers prompts: the cache that it keeps between them, and the loop that writes tokens. */

import { SiteError } from "./errors.js";
import { textStream } from "./text.js";

/** A loaded model with its tokenizer. It writes one answer at a time, always the likeliest token. */
export class Session {
  constructor(executor, tokenizer, template, { tokens, positions }) {
    this.executor = executor;
    this.tokenizer = tokenizer;
    this.template = template; // null if the model has none
    this.eos = new Set(tokens.eos);
    this.positions = positions; // size of the context, in tokens
    this.cached = []; // ids of the rows in the cache
    this.isExact = null; // true if the GPU was seen to write the CPU's tokens; null if that was not tried
  }

  /**
   * Write an answer to a prompt.
   *
   * `onPrompt(read, total)` is called while the prompt is read, `onText(text, tokens)` with each new piece of text.
   * Returns `{text, tokens, reason, promptTokens, cachedTokens, promptSeconds, seconds}`, where `reason` is `eos`, `limit`,
   * `context` or `interrupted`. An answer that was interrupted while its prompt was read has no tokens.
   */
  async generate(prompt, { mostTokens = Infinity, signal, onPrompt = () => {}, onText = () => {} } = {}) {
    if (!prompt.length) throw new SiteError("the prompt is empty; write some text");
    if (prompt.length >= this.positions) {
      throw new SiteError(`the prompt has ${prompt.length} tokens, and the context holds ${this.positions}; shorten it`);
    }
    const began = performance.now();
    const cachedTokens = commonLength(this.cached, prompt.slice(0, -1));
    const stream = textStream(this.tokenizer, prompt);
    const tokens = [];
    let text = "";
    const write = (piece) => {
      text += piece;
      if (piece) onText(piece, tokens.length);
    };
    let next = await this.#read(prompt, cachedTokens, signal, onPrompt);
    const read = performance.now();
    let reason = next === null ? "interrupted" : "";
    while (!reason) {
      tokens.push(next);
      if (this.eos.has(next)) reason = "eos";
      else {
        write(stream.feed(next));
        if (tokens.length >= mostTokens) reason = "limit";
        else if (signal?.aborted) reason = "interrupted";
        else if (prompt.length + tokens.length > this.positions) reason = "context";
        else next = await this.#pass([next], true);
      }
    }
    write(stream.finish());
    return {
      text,
      tokens,
      reason,
      promptTokens: prompt.length,
      cachedTokens,
      promptSeconds: (read - began) / 1000,
      seconds: (performance.now() - read) / 1000,
    };
  }

  /** Bring a prompt into the cache and return the first token of its answer; null if that was interrupted. */
  async #read(prompt, cachedTokens, signal, onPrompt) {
    this.cached.length = cachedTokens;
    const { rows } = this.executor.program;
    for (let at = cachedTokens; ; at += rows) {
      onPrompt(at, prompt.length);
      if (signal?.aborted) return null;
      const chunk = prompt.slice(at, at + rows);
      const isLast = at + chunk.length === prompt.length;
      const next = await this.#pass(chunk, isLast);
      if (isLast) return next;
    }
  }

  /** Run a pass of rows after the cached ones, and return the token after the last one if it is wanted. */
  async #pass(ids, wantsNext) {
    const past = this.cached.length;
    const [next] = await this.executor.run(ids, past, wantsNext ? [ids.length - 1] : []);
    if (!wantsNext) await this.executor.finished();
    this.cached.push(...ids);
    return next;
  }
}

function commonLength(left, right) {
  let length = 0;
  while (length < Math.min(left.length, right.length) && left[length] === right[length]) length += 1;
  return length;
}
