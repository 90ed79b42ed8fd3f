/**
 * The tokenizer of a site, and the text of ids while they are generated.
 *
 * The definition is edgedec's runtime/text in Python. Tests compare the two, and every site brings texts with their ids, which
 * are compared before the first answer (`probes.js`).
 */

import { ByteFallbackDecoder, PrependNormalizer, Tokenizer as Library } from "../vendor/tokenizers.js";

const BYTE_TOKEN = /^<0x[0-9A-Fa-f]{2}>$/;
// The beginning of a character at the end of bytes, which are written as characters up to U+00FF.
const INCOMPLETE = new RegExp(
  "(?:[\\xC2-\\xF4]|\\xE0[\\xA0-\\xBF]|[\\xE1-\\xEC\\xEE\\xEF][\\x80-\\xBF]|\\xED[\\x80-\\x9F]" +
    "|\\xF0[\\x90-\\xBF][\\x80-\\xBF]?|[\\xF1-\\xF3][\\x80-\\xBF]{1,2}|\\xF4[\\x80-\\x8F][\\x80-\\xBF]?)$",
);
const UTF8 = new TextDecoder("utf-8", { ignoreBOM: true });
const STRICT_UTF8 = new TextDecoder("utf-8", { ignoreBOM: true, fatal: true });

// In two things the library for JavaScript differs from the one in Rust, which edgedec uses. Rust prepends nothing to an empty
// text, and a run of byte tokens that is not UTF-8 becomes one U+FFFD for each byte.
const prepend = PrependNormalizer.prototype.normalize;
PrependNormalizer.prototype.normalize = function (text) {
  return text === "" ? text : prepend.call(this, text);
};
ByteFallbackDecoder.prototype.decode_chain = (tokens) => {
  const texts = [];
  let run = [];
  const close = () => {
    if (run.length) texts.push(isUtf8(run) ? UTF8.decode(new Uint8Array(run)) : "\uFFFD".repeat(run.length));
    run = [];
  };
  for (const token of tokens) {
    if (BYTE_TOKEN.test(token)) {
      run.push(byteOf(token));
    } else {
      close();
      texts.push(token);
    }
  }
  close();
  return texts;
};

// Parts that a `tokenizer.json` may leave out, which the library asks for.
const PARTS = { normalizer: null, pre_tokenizer: null, post_processor: null, decoder: null, added_tokens: [] };

/** A tokenizer, made of the parsed `tokenizer.json` of a bundle. */
export class Tokenizer {
  constructor(content) {
    const json = { ...PARTS, ...content };
    this.library = new Library(json, { clean_up_tokenization_spaces: false });
    this.decoder = json.decoder;
    this.special = new Set(json.added_tokens.filter((token) => token.special).map((token) => token.content));
  }

  /** Return the ids of a text, with the tokens that the tokenizer adds to it, usually a BOS. */
  encode(text) {
    return this.library.encode(text, { add_special_tokens: true }).ids;
  }

  /** Return the ids of a text that a chat template rendered, which has all its special tokens. */
  encodeRendered(text) {
    return this.library.encode(text, { add_special_tokens: false }).ids;
  }

  /** Return the text of ids, without special tokens and ids that have no token. */
  decode(ids) {
    const known = ids.filter((id) => this.tokenOf(id) !== undefined);
    return known.length ? this.library.decode(known, { skip_special_tokens: true }) : "";
  }

  /** Return the content of a token as it is in the vocabulary; undefined if no token has this id. */
  tokenOf(id) {
    return this.library.id_to_token(id);
  }

  /** Return true if `decode` leaves the token out. */
  isSpecial(id) {
    return this.special.has(this.tokenOf(id));
  }
}

/**
 * Return a stream that turns ids, one at a time, into whole characters.
 *
 * All its texts together are `decode` of all ids. Ids of the prompt go to `feed` first, and then `mark` is called; their text
 * decides about the leading blank of the answer, and a character may be split between prompt and answer.
 */
export function textStream(tokenizer, prompt = []) {
  const steps = tokenizer.decoder ? (tokenizer.decoder.decoders ?? [tokenizer.decoder]) : [];
  const kinds = steps.map((step) => step.type);
  const stream =
    kinds.length === 1 && kinds[0] === "ByteLevel"
      ? new ByteLevelStream(tokenizer)
      : new TokenStream(tokenizer, kinds.includes("ByteFallback"));
  for (const id of prompt) stream.feed(id);
  stream.mark();
  return stream;
}

/** The text of tokens that are sequences of bytes, written in GPT-2's alphabet. */
class ByteLevelStream {
  constructor(tokenizer) {
    this.tokenizer = tokenizer;
    this.alphabet = gpt2Alphabet();
    this.incomplete = [];
  }

  feed(id) {
    const bytes = [...this.incomplete, ...this.bytesOf(id)];
    const whole = bytes.length - incompleteTail(bytes);
    this.incomplete = bytes.slice(whole);
    return UTF8.decode(new Uint8Array(bytes.slice(0, whole)));
  }

  bytesOf(id) {
    const token = this.tokenizer.tokenOf(id);
    if (token === undefined || this.tokenizer.isSpecial(id)) return [];
    const bytes = Array.from(token, (character) => this.alphabet.get(character));
    return bytes.includes(undefined) ? [...new TextEncoder().encode(token)] : bytes; // an added token is its own text
  }

  mark() {}

  finish() {
    return "";
  }
}

/** The text of tokens that have their own text each, except in runs of byte tokens and at the beginning. */
class TokenStream {
  constructor(tokenizer, bytesFallBack) {
    this.tokenizer = tokenizer;
    this.bytesFallBack = bytesFallBack;
    this.anchor = []; // the last segment, a token or a whole run of byte tokens, to whose text the next one is added
    this.run = [];
    this.promptBytes = 0; // tokens at the beginning of the run that belong to the prompt
    this.emptyId = tokenizer.library.token_to_id("");
  }

  feed(id) {
    const token = this.tokenizer.tokenOf(id);
    if (token === undefined || this.tokenizer.isSpecial(id)) return "";
    if (this.bytesFallBack && BYTE_TOKEN.test(token)) {
      this.run.push(id);
      return "";
    }
    const text = this.closeRun() + this.added([id]);
    this.advance([id]);
    return text;
  }

  mark() {
    this.promptBytes = this.run.length;
  }

  finish() {
    this.run.length -= incompleteTail(this.runBytes());
    return this.closeRun();
  }

  closeRun() {
    const { run, promptBytes } = this;
    if (!run.length) return "";
    const bytes = this.runBytes();
    let omitted = promptBytes; // each byte of an invalid run becomes one U+FFFD
    if (isUtf8(bytes)) {
      // Whole characters of the prompt are omitted. A character that is split at its end belongs to the answer.
      const tail = incompleteTail(bytes.slice(0, promptBytes));
      omitted = Array.from(this.added(run.slice(0, promptBytes - tail))).length;
    }
    const text = Array.from(this.added(run)).slice(omitted).join("");
    this.advance(run);
    this.run = [];
    this.promptBytes = 0;
    return text;
  }

  runBytes() {
    return this.run.map((id) => byteOf(this.tokenizer.tokenOf(id)));
  }

  added(segment) {
    const before = this.tokenizer.decode(this.anchor);
    return this.tokenizer.decode([...this.anchor, ...segment]).slice(before.length);
  }

  advance(segment) {
    const isEmpty = segment.length === 1 && segment[0] === this.emptyId;
    if (!isEmpty) this.anchor = segment;
    else if (this.anchor.at(-1) !== this.emptyId) this.anchor = [...this.anchor, ...segment]; // it ends a run of byte tokens
  }
}

/** Return the byte that a byte token stands for. */
function byteOf(token) {
  return Number.parseInt(token.slice(3, 5), 16);
}

function isUtf8(bytes) {
  try {
    STRICT_UTF8.decode(new Uint8Array(bytes));
    return true;
  } catch {
    return false;
  }
}

/** Return the number of bytes at the end, 0 to 3, that begin a character. */
function incompleteTail(bytes) {
  const match = INCOMPLETE.exec(String.fromCharCode(...bytes.slice(-3)));
  return match ? match[0].length : 0;
}

/** Return the byte of each character of GPT-2's alphabet. Source: GPT-2 `encoder.py`, `bytes_to_unicode`. */
function gpt2Alphabet() {
  const alphabet = new Map();
  let other = 0x100;
  for (let byte = 0; byte < 256; byte += 1) {
    const isPrintable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    alphabet.set(String.fromCodePoint(isPrintable ? byte : other), byte);
    if (!isPrintable) other += 1;
  }
  return alphabet;
}
