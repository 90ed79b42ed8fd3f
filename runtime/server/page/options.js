/** The options of a request: their fields, and the server's defaults in them. */

const NAMES = ["temperature", "top_k", "top_p", "min_p", "repeat_penalty", "max_tokens", "seed"];
const DEFAULTS = { max_tokens: "n_predict" }; // names in `/props` that differ
const WORDS = { max_tokens: "no limit", seed: "random" }; // words for the value -1

/** Return the options that the user has set. Throws an Error if a field has something that is no number. */
export function optionsOf(panel) {
  const options = {};
  for (const name of NAMES) {
    const field = panel.querySelector(`#${name}`);
    if (field.validity.badInput) throw new Error(`${field.labels[0].textContent.trim()}: this is not a number`);
    if (field.value !== "") options[name] = Number(field.value);
  }
  return options;
}

/** Show the server's defaults in the fields that are empty. */
export function showDefaults(panel, props) {
  const { params } = props.default_generation_settings;
  for (const name of NAMES) {
    const value = params[DEFAULTS[name] ?? name];
    if (value === undefined) continue;
    panel.querySelector(`#${name}`).placeholder = (value === -1 && WORDS[name]) || String(value);
  }
}
