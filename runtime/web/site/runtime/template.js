/** The chat template of a site, rendered by `@huggingface/jinja`, which interprets it without running it as JavaScript. */

import { Template } from "../vendor/jinja.js";
import { SiteError } from "./errors.js";

const WORD = "zqone";
const SHOWN = new RegExp(`(?<!text': ')(?<!text": ")${WORD}`); // not as Python or JSON spells a list

/** Return messages in which the user says what the system says: before the next message of the user, or after the last. */
function withSystemInUser(messages) {
  const result = [];
  let pending = [];
  const joined = (several) => several.map(({ content }) => content ?? "").filter((text) => text).join("\n\n");
  for (const message of messages) {
    if (message.role === "system") {
      pending.push(message);
    } else if (message.role === "user" && pending.length) {
      result.push({ ...message, content: joined([...pending, message]) });
      pending = [];
    } else {
      result.push(message);
    }
  }
  if (pending.length) {
    const last = result.at(-1)?.role === "user" ? [result.pop()] : [];
    result.push({ ...pending[0], role: "user", content: joined([...last, ...pending]) });
  }
  return result;
}

/** A chat template with the spellings of the tokens that it may write. */
export class ChatTemplate {
  constructor(source, { bos, eos }) {
    this.names = { bos_token: bos, eos_token: eos, add_generation_prompt: true, tools: null, documents: null };
    try {
      this.template = new Template(source);
    } catch (error) {
      throw new SiteError(`the chat template cannot be read in a browser: ${error.message}`, { cause: error });
    }
  }

  /** Return whether the template shows what a role says, which is tried with a conversation of a few words. */
  shows(role) {
    const after = role === "system" ? [{ role: "user", content: "a" }] : [];
    return [WORD, [{ type: "text", text: WORD }]].some((content) => {
      try {
        const names = { ...this.names, bos_token: "", eos_token: "" };
        return SHOWN.test(this.template.render({ ...names, messages: [{ role, content }, ...after] }));
      } catch {
        return false;
      }
    });
  }

  /** True if the template shows what the user says, and refuses or leaves out what the system says. */
  get lacksSystem() {
    this.lacking ??= !this.shows("system") && this.shows("user");
    return this.lacking;
  }

  /**
   * Return the text of messages, `{role, content}` each, to be continued by the answer. As in edgedec, a template that has
   * no role `system` gets its texts within messages of the user.
   */
  render(messages) {
    const moved = messages.some(({ role }) => role === "system") && this.lacksSystem;
    const taken = moved ? withSystemInUser(messages) : messages;
    try {
      return this.template.render({ ...this.names, messages: structuredClone(taken) });
    } catch (error) {
      throw new SiteError(`the chat template refused the conversation: ${error.message}`, { cause: error });
    }
  }
}
