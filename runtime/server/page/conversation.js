/**
 * One conversation: a tree of messages, of which one branch is shown. An edited message, or an answer that was tried again,
 * is a further child of the same parent, so nothing that was said before is lost.
 *
 * A conversation is JSON data: {version, id, title, system, created, updated, leaf, messages}. `title` is "" until the user
 * gives one; `system` is its system prompt; `created` and `updated` are milliseconds since 1970; `leaf` is the id of the last
 * message of the branch that is shown, null if there is none. A message is {id, parent, role, content}, after its parent in
 * the list; those of the model may have `reasoning` and `figures`, texts, and `guessed`, the parts that were guessed.
 */

export const VERSION = 1;
const TITLE_CHARACTERS = 60;
const ID = /^[0-9a-z]{1,40}$/;
const FIELDS = new Set(["version", "id", "title", "system", "created", "updated", "leaf", "messages"]);
const MESSAGE_FIELDS = new Set(["id", "parent", "role", "content", "reasoning", "figures", "guessed"]);

/** Return a new id. `crypto.randomUUID` would need TLS on other machines. */
export function newId() {
  return [...crypto.getRandomValues(new Uint8Array(10))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Return an empty conversation. */
export function newConversation(now = Date.now()) {
  return { version: VERSION, id: newId(), title: "", system: "", created: now, updated: now, leaf: null, messages: [] };
}

/** Return a new message after another one; `parent` is null for the first. */
export function newMessage(parent, role, content) {
  return { id: newId(), parent, role, content };
}

/** Add messages, and show the branch that ends with the last of them. */
export function add(conversation, ...messages) {
  conversation.messages.push(...messages);
  conversation.leaf = messages.at(-1).id;
  conversation.updated = Date.now();
}

/** Return the messages from the first one to the one with an id. */
export function branch(conversation, leaf = conversation.leaf) {
  const byId = new Map(conversation.messages.map((message) => [message.id, message]));
  const found = [];
  for (let message = byId.get(leaf); message; message = byId.get(message.parent)) found.push(message);
  return found.reverse();
}

/** Return the versions of a message: those that have its parent and its role, in the order in which they were written. */
export function versions(conversation, message) {
  return conversation.messages.filter((other) => other.parent === message.parent && other.role === message.role);
}

/** Show the branch of a message, with the newest of what follows it. */
export function choose(conversation, id) {
  const newest = new Map(conversation.messages.map((message) => [message.parent, message.id]));
  conversation.leaf = id;
  while (newest.has(conversation.leaf)) conversation.leaf = newest.get(conversation.leaf);
}

/** Return the title: the user's, or the beginning of the first message. */
export function titleOf(conversation) {
  if (conversation.title) return conversation.title;
  const first = (conversation.messages[0]?.content ?? "").replace(/\s+/g, " ").trim();
  if (!first) return "New chat";
  return first.length > TITLE_CHARACTERS ? `${first.slice(0, TITLE_CHARACTERS)}…` : first;
}

/** Return the messages that the server gets for a branch. The thoughts of earlier answers are not sent. */
export function forServer(conversation, messages) {
  const system = conversation.system.trim() ? [{ role: "system", content: conversation.system }] : [];
  return [...system, ...messages.map(({ role, content }) => ({ role, content }))];
}

/** Return the branch that is shown as Markdown. */
export function asMarkdown(conversation) {
  const parts = [`# ${titleOf(conversation).replace(/\s+/g, " ")}`];
  if (conversation.system.trim()) parts.push("## System", conversation.system.trimEnd());
  for (const { role, content, reasoning } of branch(conversation)) {
    parts.push(role === "user" ? "## You" : "## Model");
    if (reasoning) parts.push(reasoning.trimEnd().replace(/^/gm, "> "));
    parts.push(content.trimEnd());
  }
  return `${parts.join("\n\n")}\n`;
}

/** Return the messages of two states of a conversation, of which each may have some that the other has not. */
export function united(stored, own) {
  const ids = new Set(stored.map((message) => message.id));
  return [...stored, ...own.filter((message) => !ids.has(message.id))];
}

/**
 * Return a value as a conversation of this version, or throw an Error that names what is wrong with it.
 *
 * A value without a version is read if it has `messages` as a server takes them: {role, content}, of which the first may be
 * the system prompt.
 */
export function checked(value) {
  if (!isObject(value)) throw new Error("it is not an object");
  if (value.version === undefined) return fromPlain(value);
  if (!Number.isInteger(value.version) || value.version < 1) throw new Error("version is not a positive whole number");
  if (value.version > VERSION) {
    throw new Error(`it has version ${value.version}, and this page knows versions up to ${VERSION}: use a newer edgedec`);
  }
  refuseUnknown(value, FIELDS, "");
  for (const name of ["title", "system"]) text(value[name], name);
  for (const name of ["created", "updated"]) {
    if (!Number.isFinite(value[name])) throw new Error(`${name} is not a number`);
  }
  if (!ID.test(value.id)) throw new Error("id is not a word of small letters and digits");
  if (!Array.isArray(value.messages)) throw new Error("messages is not a list");
  const roles = new Map();
  value.messages.forEach((message, at) => {
    checkMessage(message, `messages[${at}]`, roles);
    roles.set(message.id, message.role);
  });
  if (value.leaf === null ? value.messages.length > 0 : !roles.has(value.leaf)) throw new Error("leaf names no message");
  return value;
}

function checkMessage(message, place, roles) {
  if (!isObject(message)) throw new Error(`${place} is not an object`);
  refuseUnknown(message, MESSAGE_FIELDS, `${place}.`);
  if (!ID.test(message.id)) throw new Error(`${place}.id is not a word of small letters and digits`);
  if (roles.has(message.id)) throw new Error(`${place}.id occurs twice`);
  if (message.role !== "user" && message.role !== "assistant") throw new Error(`${place}.role is not user or assistant`);
  if (message.parent !== null && !roles.has(message.parent)) throw new Error(`${place}.parent names no earlier message`);
  if (message.role === "assistant" && roles.get(message.parent) !== "user") {
    throw new Error(`${place} is an answer to no message of the user`);
  }
  text(message.content, `${place}.content`);
  for (const name of ["reasoning", "figures"]) {
    if (message[name] !== undefined) text(message[name], `${place}.${name}`);
  }
  if (message.guessed !== undefined && !areMarks(message.guessed)) {
    throw new Error(`${place}.guessed is not a list of pairs of growing numbers`);
  }
}

function areMarks(value) {
  if (!Array.isArray(value)) return false;
  let last = 0;
  return value.every((pair) => {
    const isRight = Array.isArray(pair) && pair.length === 2 && pair.every(Number.isInteger) && last <= pair[0] && pair[0] < pair[1];
    last = pair?.[1];
    return isRight;
  });
}

function fromPlain(value) {
  if (!Array.isArray(value.messages)) throw new Error("it has neither a version nor a list of messages");
  refuseUnknown(value, new Set(["title", "messages"]), "");
  if (value.title !== undefined) text(value.title, "title");
  const made = { ...newConversation(), title: value.title ?? "" };
  value.messages.forEach((message, at) => {
    const place = `messages[${at}]`;
    if (!isObject(message)) throw new Error(`${place} is not an object`);
    refuseUnknown(message, new Set(["role", "content"]), `${place}.`);
    text(message.content, `${place}.content`);
    if (at === 0 && message.role === "system") made.system = message.content;
    else add(made, newMessage(made.leaf, message.role, message.content));
  });
  return checked(made);
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function text(value, name) {
  if (typeof value !== "string") throw new Error(`${name} is not a text`);
}

function refuseUnknown(value, known, place) {
  const name = Object.keys(value).find((one) => !known.has(one));
  if (name !== undefined) throw new Error(`${place}${name.slice(0, 60)} is not a field that this page knows`);
}
