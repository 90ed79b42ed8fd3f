/** The header of a pass: the words that tell every kernel its rows. Its layout is that of edgedec's runtime/gpu/kernels/head.py. */

import { SiteError } from "./errors.js";

export const BLOCK_ROWS = 16; // rows of a block of the cache
const FIXED = 8; // words before the tables
const ROW_TABLES = ["id", "position", "sequence", "first", "past", "count", "table"];

/** The header of passes of one text, whose cache is the blocks 0, 1, 2 and so on. */
export class Header {
  constructor({ rows, results, blocks }) {
    this.rows = rows;
    this.results = results;
    this.blocks = blocks;
    this.maskWords = Math.ceil(rows / 32);
    this.resultRows = FIXED + ROW_TABLES.length * rows;
    this.masks = this.resultRows + results;
    this.tables = this.masks + rows * this.maskWords;
    this.words = new Uint32Array(this.tables + blocks);
    this.signed = new Int32Array(this.words.buffer);
    for (let block = 0; block < blocks; block += 1) this.words[this.tables + block] = block;
  }

  /** Return the first word of a table of the rows. */
  table(name) {
    return FIXED + ROW_TABLES.indexOf(name) * this.rows;
  }

  /**
   * Write a pass and return the words.
   *
   * `ids` are those of the rows, which follow `past` committed rows; each row sees itself and all rows before it. `results`
   * are the rows whose logits are wanted.
   */
  write(ids, past, results) {
    const n = ids.length;
    if (n > this.rows || results.length > this.results || past + n > this.blocks * BLOCK_ROWS) {
      throw new SiteError(`a pass of ${n} rows after ${past} with ${results.length} results does not fit the program`);
    }
    this.words.set([0, n, results.length, 1]);
    for (const [name, value] of Object.entries({ sequence: 0, first: 0, past, count: n, table: 0 })) {
      this.words.fill(value, this.table(name), this.table(name) + n);
    }
    this.signed.set(ids, this.table("id"));
    for (let row = 0; row < n; row += 1) {
      this.words[this.table("position") + row] = past + row;
      for (let word = 0; word < this.maskWords; word += 1) {
        const bits = Math.min(Math.max(row + 1 - 32 * word, 0), 32);
        this.words[this.masks + row * this.maskWords + word] = bits === 32 ? 0xffffffff : 2 ** bits - 1;
      }
    }
    this.signed.set(results, this.resultRows);
    return this.words;
  }
}
