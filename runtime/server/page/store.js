/**
 * The conversations in the browser's local storage, each under a key of its own, so that two tabs do not overwrite each
 * other's. What cannot be stored stays in the page; what cannot be read stays as it is in the storage.
 */

import { checked, newId, titleOf, united } from "./conversation.js";

const PREFIX = "edgedec.chat.";
const FORMAT = "edgedec-chats";
const MOST_FILE_BYTES = 32 << 20; // bytes of an import, several times what browsers store

/** Return the browser's storage, or null if it is switched off. */
export function browserStorage() {
  try {
    return globalThis.localStorage ?? null;
  } catch {
    return null; // a browser without cookies throws
  }
}

/** The conversations. `unsaved` has the ids of those that the storage did not take. */
export class Store {
  #kept = new Map(); // id -> a conversation that is in this page only

  /** @param {Storage | null} storage where conversations are kept; null: in this page only. */
  constructor(storage) {
    this.storage = storage;
  }

  get unsaved() {
    return [...this.#kept.keys()];
  }

  /** Return entries {id, title, updated, isStored, problem}, the newest first. `problem` says why one cannot be read. */
  list() {
    const entries = [...this.#kept.values()].map((one) => ({ ...entryOf(one), isStored: false }));
    for (const id of this.#storedIds()) {
      if (this.#kept.has(id)) continue;
      try {
        entries.push(entryOf(this.#read(id)));
      } catch (error) {
        entries.push({ id, title: "A chat that cannot be read", updated: 0, isStored: true, problem: error.message });
      }
    }
    return entries.sort((one, other) => other.updated - one.updated);
  }

  /** Return a conversation, or throw an Error that says why it cannot be read. */
  get(id) {
    return this.#kept.get(id) ?? this.#read(id);
  }

  /** Return true if there is a conversation with an id. */
  has(id) {
    return this.#kept.has(id) || this.#storedIds().includes(id);
  }

  /** Return what is stored under an id, for a copy of what cannot be read. */
  raw(id) {
    return this.storage?.getItem(PREFIX + id) ?? "";
  }

  /**
   * Store a conversation with the messages that another tab may have added, and return an empty text; or keep it in the page
   * and return the reason.
   */
  save(conversation) {
    if (this.storage === null) {
      this.#kept.set(conversation.id, conversation);
      return "this browser stores nothing for this page";
    }
    try {
      conversation.messages = united(this.#read(conversation.id)?.messages ?? [], conversation.messages);
    } catch (error) {
      this.#kept.set(conversation.id, conversation);
      return `what is stored of this chat cannot be read (${error.message}), and is left as it is`;
    }
    try {
      this.storage.setItem(PREFIX + conversation.id, JSON.stringify(conversation));
      this.#kept.delete(conversation.id);
      return "";
    } catch (error) {
      this.#kept.set(conversation.id, conversation);
      return error.name === "QuotaExceededError" ? "the browser's storage for this page is full" : error.message;
    }
  }

  /** Try to store again what was not, and return true if nothing is left. */
  saveRest() {
    for (const conversation of [...this.#kept.values()]) this.save(conversation);
    return this.#kept.size === 0;
  }

  /** Remove a conversation, and return a function that brings it back as `save` does. */
  remove(id) {
    const kept = this.#kept.get(id);
    const raw = this.raw(id);
    this.#kept.delete(id);
    this.storage?.removeItem(PREFIX + id);
    return () => {
      if (kept) return this.save(kept);
      try {
        this.storage.setItem(PREFIX + id, raw);
        return "";
      } catch (error) {
        try {
          return this.save(checked(JSON.parse(raw)));
        } catch {
          return error.message;
        }
      }
    };
  }

  /** Return a file with conversations, as JSON; those that cannot be read are not in it, and their number is returned, too. */
  exported(ids = this.list().map((entry) => entry.id)) {
    const conversations = [];
    let unreadable = 0;
    for (const id of ids) {
      try {
        conversations.push(this.get(id));
      } catch {
        unreadable += 1;
      }
    }
    const text = `${JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1)}\n`;
    return { text, unreadable };
  }

  /**
   * Add the conversations of a file: of `exported`, or one with plain `messages`. Nothing is added if a part of it is wrong.
   *
   * @returns {{ids: string[], same: number, problem: string}} the ids of what was added; the number of conversations that were
   *   here already, which are not added again; and why some are kept in the page only. One that differs from that of its id
   *   is added under a new id.
   */
  import(text) {
    const read = conversationsOf(text);
    const result = { ids: [], same: 0, problem: "" };
    for (const conversation of read) {
      if (this.has(conversation.id)) {
        if (this.#equals(conversation)) {
          result.same += 1;
          continue;
        }
        conversation.id = newId();
      }
      result.problem = this.save(conversation) || result.problem;
      result.ids.push(conversation.id);
    }
    return result;
  }

  #equals(conversation) {
    try {
      return JSON.stringify(this.get(conversation.id)) === JSON.stringify(conversation);
    } catch {
      return false;
    }
  }

  #storedIds() {
    const count = this.storage?.length ?? 0;
    const keys = Array.from({ length: count }, (_, at) => this.storage.key(at) ?? "");
    return keys.filter((key) => key.startsWith(PREFIX)).map((key) => key.slice(PREFIX.length));
  }

  #read(id) {
    const raw = this.storage?.getItem(PREFIX + id) ?? null;
    if (raw === null) return undefined;
    const conversation = checked(parsed(raw));
    if (conversation.id !== id) throw new Error("it has the id of another chat");
    return conversation;
  }
}

/** Return true if a key of the storage, as a `storage` event names it, is that of a conversation; null is all of them. */
export function isChatKey(key) {
  return key === null || key.startsWith(PREFIX);
}

function entryOf(conversation) {
  const { id, updated } = conversation;
  return { id, title: titleOf(conversation), updated, isStored: true, problem: "" };
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error("it is not JSON");
  }
}

function conversationsOf(text) {
  if (text.length > MOST_FILE_BYTES) throw new Error(`the file has more than ${MOST_FILE_BYTES >> 20} MiB`);
  const value = parsed(text);
  if (value?.format === undefined) return [checked(value)];
  if (value.format !== FORMAT) throw new Error(`its format is ${JSON.stringify(value.format)}, not "${FORMAT}"`);
  if (value.version !== 1) throw new Error(`its version is ${JSON.stringify(value.version)}, and this page reads 1`);
  if (!Array.isArray(value.conversations)) throw new Error("conversations is not a list");
  return value.conversations.map((one, at) => {
    try {
      return checked(one);
    } catch (error) {
      throw new Error(`conversations[${at}]: ${error.message}`);
    }
  });
}
