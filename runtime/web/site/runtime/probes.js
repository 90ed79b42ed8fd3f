/** The check that this browser reads texts and conversations as edgedec did when it wrote the site. */

import { SiteError } from "./errors.js";

/**
 * Compare tokenizer and chat template with the results in the site.
 *
 * A text or conversation that gives other ids here would change the answers, so it is an error, which names it.
 */
export function checkProbes(probes, tokenizer, template) {
  for (const { text, ids } of probes.texts) {
    const found = tokenizer.encode(text);
    if (!equal(found, ids)) {
      throw new SiteError(
        `the tokenizer makes other ids of ${JSON.stringify(text)} than edgedec (${found} in place of ${ids}); ` +
          "run this model with edgedec itself",
      );
    }
  }
  for (const { messages, text } of template ? probes.conversations : []) {
    const found = template.render(messages);
    if (found !== text) {
      throw new SiteError(
        `the chat template makes another text than in edgedec (${JSON.stringify(found)} in place of ` +
          `${JSON.stringify(text)}); run this model with edgedec itself`,
      );
    }
  }
}

function equal(left, right) {
  return left.length === right.length && left.every((value, at) => value === right[at]);
}
