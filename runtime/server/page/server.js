/** What the page asks the server for: its properties, its memory, and the stream of an answer. */

const KEY = "edgedec.key"; // name in the storage of the browser's tab

// The ledger's names that a reader of the page may not know.
const PARTS = {
  arena: "keys and values of texts",
  passes: "work of the model",
  grammars: "forms of structured answers",
};

/** The server refuses the key, or wants one. */
export class KeyError extends Error {}

/** The server that sent the page. */
export class Server {
  #key = "";
  #session = null;

  constructor() {
    try {
      this.#session = globalThis.sessionStorage;
      this.#key = this.#session.getItem(KEY) ?? "";
    } catch {
      this.#session = null; // the browser stores nothing; the key stays in the page
    }
  }

  /** Where the key is kept, as a sentence for the user. */
  get keyPlace() {
    return this.#session === null
      ? "The key is kept in this page only, until it is closed or loaded again."
      : "The key is kept in the storage of this tab, until the tab is closed, and is sent to this server only.";
  }

  /** Use another key; an empty one forgets it. Throws an Error if no key can look like this. */
  setKey(key) {
    if (!/^[!-~]*$/.test(key)) throw new Error("an API key is a word of printable ASCII characters without spaces");
    this.#key = key;
    try {
      if (key) this.#session?.setItem(KEY, key);
      else this.#session?.removeItem(KEY);
    } catch {
      this.#session = null;
    }
  }

  /** Return the JSON data of a path. */
  async get(path) {
    return (await this.#fetch(path, {})).json();
  }

  /** Yield the chunks of the answer to a request, as objects. */
  async *answer(body, signal) {
    const response = await this.#fetch("v1/chat/completions", { method: "POST", body: JSON.stringify(body), signal });
    let isWhole = false;
    for await (const data of events(response.body)) {
      if (data === "[DONE]") {
        isWhole = true;
        continue;
      }
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      yield chunk;
    }
    if (!isWhole) throw new Error("the connection ended before the answer did");
  }

  async #fetch(path, options) {
    const headers = { "Content-Type": "application/json" };
    if (this.#key) headers.Authorization = `Bearer ${this.#key}`;
    let response;
    try {
      response = await fetch(path, { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("the server does not answer; is it still running?");
    }
    if (response.ok) return response;
    if (response.status !== 401) throw new Error(await problem(response));
    throw new KeyError(this.#key ? "The server refuses this API key." : "This server asks for an API key.");
  }
}

async function problem(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered with status ${response.status}`;
  }
}

/** Yield the data of a stream's events. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const event of parts) {
      if (event.startsWith("data: ")) yield event.slice(6);
    }
  }
}

/** Add a chunk of a stream to a message. */
export function addChunk(message, chunk) {
  const { delta = {}, finish_reason: reason } = chunk.choices[0] ?? {};
  if (delta.reasoning_content) message.reasoning = (message.reasoning ?? "") + delta.reasoning_content;
  if (delta.content) {
    if (chunk.guessed) addGuessed(message, delta.content.length);
    message.content += delta.content;
  }
  if (chunk.timings) message.figures = figuresOf(chunk.timings) + (reason === "length" ? "; ended at the limit of tokens" : "");
}

/** Note that the text that comes next in a message, of so many characters, was guessed. */
function addGuessed(message, length) {
  const begin = message.content.length;
  message.guessed ??= [];
  const last = message.guessed.at(-1);
  if (last?.[1] === begin) last[1] = begin + length;
  else message.guessed.push([begin, begin + length]);
}

/** Return the figures of an answer as a line. */
function figuresOf(timings) {
  const speed = `${timings.predicted_n} tokens, ${timings.predicted_per_second.toFixed(1)} per second`;
  if (!timings.draft_n) return speed;
  return `${speed}; ${timings.draft_n_accepted} of ${timings.draft_n} guesses accepted`;
}

/** Return a number of bytes in MiB. */
function mebibytes(bytes) {
  return `${(bytes / 1024 / 1024).toFixed(1)} MiB`;
}

/**
 * Return what the memory is used for: `text`, a sentence; `most` and `used`, bytes; `parts`, lines of a list.
 *
 * @param {object} ledger the ledger of `/memory`.
 * @param {number} planned bytes of the plan, which bound the memory if there is no budget.
 */
export function memoryOf(ledger, planned) {
  const used = ledger.charged_bytes;
  const hasBudget = ledger.budget_bytes !== null;
  const most = ledger.budget_bytes ?? planned;
  const free = mebibytes(Math.max(0, most - used));
  const short = ledger.shut ? "; the system is short of memory" : "";
  const text = hasBudget
    ? `Memory budget ${mebibytes(most)}: ${mebibytes(used)} used, ${free} free${short}`
    : `No memory budget: ${mebibytes(used)} used of the ${mebibytes(most)} that are planned${short}`;
  const parts = Object.entries(ledger.items).map(([name, bytes]) => `${PARTS[name] ?? name}: ${mebibytes(bytes)}`);
  if (ledger.floor_bytes > 0) parts.push(`of the free memory, kept for small requests: ${mebibytes(ledger.floor_bytes)}`);
  parts.push(`most that was used at a time: ${mebibytes(ledger.peak_bytes)}`);
  return { text, most: Math.max(most, used, 1), used, parts };
}
