/** The chat template of a site, rendered by `@huggingface/jinja`, which interprets it without running it as JavaScript. */

import { Template } from "../vendor/jinja.js";
import { SiteError } from "./errors.js";

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

  /** Return the text of messages, `{role, content}` each, to be continued by the answer. */
  render(messages) {
    try {
      return this.template.render({ ...this.names, messages: structuredClone(messages) });
    } catch (error) {
      throw new SiteError(`the chat template refused the conversation: ${error.message}`, { cause: error });
    }
  }
}
