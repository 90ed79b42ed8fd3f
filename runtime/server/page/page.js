/** The page for chats: it joins the server, the conversations of this browser, and what is shown. */

import { ChatList, download } from "./chats.js";
import { add, branch, choose, forServer, newConversation, newMessage, versions } from "./conversation.js";
import { Messages } from "./messages.js";
import { optionsOf, showDefaults } from "./options.js";
import { $, complain, listenToPanels, openPanel, say } from "./panels.js";
import { addChunk, KeyError, memoryOf, Server } from "./server.js";
import { browserStorage, isChatKey, Store } from "./store.js";
import { button, element } from "./view.js";

const CURRENT = "edgedec.current"; // key in the storage of the tab: the conversation that a reload shows again
const MEMORY_MS = 2000;
const EXAMPLES = [
  "Explain in two sentences what a language model does.",
  "Write a short poem about rain on a window.",
  "List three ways to save memory in a program.",
];

const server = new Server();
const store = new Store(browserStorage());
let chat = newConversation();
let pending = null; // the answer that is being written: {conversation, before, parent, messages, controller}
let editing = null; // the message that is edited: {id, text}
let props = null; // properties of the server
let trouble = ""; // why they are not known
let isLocked = false; // the server waits for another key

const messages = new Messages($("conversation"), { edit, cancelEdit, submitEdit, retry, choose: chooseVersion });
const list = new ChatList($("chat-list"), store, { open: openChat, rename, remove });

// --- what is shown ----------------------------------------------------------------------------------------------------

/** Show the branch of the conversation, and what can be done now. */
function draw() {
  const isAnswered = pending?.conversation === chat;
  const shown = isAnswered ? [...branch(chat, pending.parent), ...pending.messages] : branch(chat);
  $("empty").hidden = shown.length > 0;
  messages.draw(shown, { isBusy: pending !== null, editing, versions: (message) => versions(chat, message) });
  $("conversation").setAttribute("aria-busy", String(isAnswered));
  $("send").hidden = pending !== null;
  $("stop").hidden = pending === null;
  if (!list.isRenaming) list.draw(chat.id);
}

// --- the conversations ------------------------------------------------------------------------------------------------

function save(conversation) {
  const problem = store.save(conversation);
  if (!problem) return;
  complain(
    `This chat is not stored: ${problem}. It is kept in this page until it is closed; save it as JSON, or delete other chats.`,
  );
}

/** Remember which conversation a reload of this tab shows again. */
function remember(id) {
  try {
    sessionStorage.setItem(CURRENT, id);
  } catch {
    // Without a storage there is no conversation to show again.
  }
}

/** Return the conversation that this tab showed before it was loaded again, or null. */
function remembered() {
  try {
    return sessionStorage.getItem(CURRENT);
  } catch {
    return null;
  }
}

function show(conversation) {
  chat = conversation;
  $("system").value = chat.system;
  complain("");
  say("");
  remember(chat.id);
  draw();
  messages.toEnd();
}

function openChat(id) {
  try {
    show(pending?.conversation.id === id ? pending.conversation : store.get(id));
  } catch (error) {
    complain(`This chat cannot be read: ${error.message}. It is left as it is.`);
  }
}

function newChat() {
  show(newConversation());
  $("message").focus();
}

function rename(id, title) {
  const conversation = id === chat.id ? chat : store.get(id);
  conversation.title = title;
  save(conversation);
}

function remove(id) {
  const title = store.list().find((entry) => entry.id === id).title;
  if (pending?.conversation.id === id) {
    pending.isDropped = true;
    pending.controller.abort();
  }
  const isShown = chat.id === id;
  const restore = store.remove(id);
  store.saveRest(); // there is more room now
  if (isShown) show(newConversation());
  else draw();
  say(`“${title}” is deleted.`, "Undo", () => {
    const problem = restore();
    if (problem) complain(`The chat is not stored again: ${problem}.`);
    if (isShown) openChat(id);
    else draw();
  });
}

async function importFile(file) {
  try {
    const { ids, same, problem } = store.import(await file.text());
    if (ids.length === 1) openChat(ids[0]);
    draw();
    const known = same ? `, ${same} here already` : "";
    say(`Imported from ${file.name}: ${ids.length} new${known}.`);
    if (problem) complain(`Some are kept in this page only: ${problem}.`);
  } catch (error) {
    complain(`${file.name} was not imported: ${error.message}.`);
  }
}

function exportAll() {
  const { text, unreadable } = store.exported();
  download("edgedec-chats.json", text, "application/json");
  say(unreadable ? `${unreadable} chats that cannot be read are not in the file.` : "");
}

// --- messages ---------------------------------------------------------------------------------------------------------

function send(content = $("message").value.trim()) {
  if (!content || pending) return;
  complain("");
  const last = branch(chat).at(-1);
  const parent = last?.role === "user" ? last.parent : chat.leaf; // one that was not answered is replaced
  const message = newMessage(parent, "user", content);
  $("message").value = "";
  add(chat, message);
  save(chat);
  answer({ parent: message.id, before: message.id, messages: [] });
}

function edit(message) {
  if (pending) return;
  editing = { id: message.id, text: message.content };
  draw();
  $("edited").focus();
}

function cancelEdit() {
  editing = null;
  draw();
  $("message").focus();
}

function submitEdit(message, text) {
  if (!text.trim() || pending) return;
  complain("");
  const edited = newMessage(message.parent, "user", text.trim());
  answer({ parent: message.parent, before: chat.leaf, messages: [edited], edited: { id: message.id, text } });
  $("message").focus();
}

function retry(message) {
  if (pending) return;
  complain("");
  const parent = message.role === "assistant" ? message.parent : message.id;
  answer({ parent, before: chat.leaf, messages: [] });
  $("message").focus();
}

function chooseVersion(message) {
  if (pending) return;
  choose(chat, message.id);
  save(chat);
  draw();
}

/**
 * Ask for an answer. The branch that is shown now stays the conversation's until the answer has a text.
 *
 * @param {object} asked `parent`: id of the message after which `messages` come, which become a part of the conversation with
 *   the answer; `before`: id of the last message of the branch that is shown now; `edited`: what is edited again if there is
 *   no answer.
 */
async function answer(asked) {
  let options;
  try {
    options = optionsOf($("options"));
  } catch (error) {
    openPanel("options");
    draw();
    complain(error.message);
    return;
  }
  const written = newMessage(asked.messages.at(-1)?.id ?? asked.parent, "assistant", "");
  const own = { ...asked, conversation: chat, controller: new AbortController() };
  own.messages = [...asked.messages, written];
  const said = [...branch(chat, asked.parent), ...asked.messages];
  pending = own;
  if (own.edited) editing = null;
  say("Writing");
  draw();
  messages.toEnd();
  let problem = "";
  try {
    const body = { ...options, messages: forServer(chat, said), stream: true };
    for await (const chunk of server.answer(body, own.controller.signal)) {
      addChunk(written, chunk);
      if (own.conversation === chat) messages.grow();
    }
    say("Done");
  } catch (error) {
    if (error.name !== "AbortError") problem = error.message;
    if (error instanceof KeyError) askForKey();
    say(problem ? "" : "Stopped");
  }
  messages.flush();
  finish(own);
  if (problem) complain(problem);
  showMemory();
}

/** Make an answer a part of its conversation, if it has a text, and keep the branch that was there before. */
function finish(own) {
  if (pending !== own) return;
  pending = null;
  const written = own.messages.at(-1);
  const { conversation } = own;
  if (!own.isDropped && (written.content || written.reasoning)) {
    add(conversation, ...own.messages);
    save(conversation);
    if (conversation === chat && (own.before !== own.parent || own.edited)) offerUndo(own);
  } else if (own.edited) {
    editing = own.edited;
  }
  draw();
  if (own.edited) $("edited")?.focus();
}

function offerUndo({ conversation, before, edited }) {
  say(edited ? "The branch before the edit is kept." : "The earlier answer is kept.", "Undo", () => {
    conversation.leaf = before;
    save(conversation);
    draw();
    $("message").focus();
  });
}

// --- the server -------------------------------------------------------------------------------------------------------

async function showProps() {
  props = await server.get("props");
  $("model").textContent = props.model_alias;
  document.title = `${props.model_alias} - edgedec`;
  showDefaults($("options"), props);
  const { about } = props;
  $("about-name").textContent = props.model_alias;
  const size = `${props.default_generation_settings.n_ctx} tokens`;
  $("about").textContent = about?.description
    ? `This is ${about.description}. A conversation may have ${size}.`
    : `A language model on this server. A conversation may have ${size}.`;
  const texts = about?.examples?.length ? about.examples : EXAMPLES;
  $("examples").replaceChildren(...texts.map((text) => button(text, () => send(text))));
}

/** Show the server's memory, and at first its properties. Without the right key nothing more is asked. */
async function showMemory() {
  if (isLocked) return;
  try {
    if (!props) await showProps();
    const { text, most, used, parts } = memoryOf((await server.get("memory")).ledger, props.planned_bytes);
    $("memory").max = most;
    $("memory").value = used;
    $("memory-text").textContent = text;
    $("parts").replaceChildren(...parts.map((part) => element("li", "", part)));
    if (trouble && $("alert").textContent === trouble) complain("");
    trouble = "";
  } catch (error) {
    $("memory-text").textContent = "Memory: not known";
    if (error instanceof KeyError) askForKey();
    if (props && !isLocked) return; // the server ended, or is busy
    trouble = error.message;
    if ($("alert").textContent !== trouble) complain(trouble); // a screen reader says it once
  }
}

function askForKey() {
  isLocked = true;
  openPanel("key-panel");
  $("key").focus();
}

function useKey() {
  try {
    server.setKey($("key").value.trim());
    isLocked = false;
    complain("");
    openPanel("");
    $("key").value = "";
    props = null;
    showMemory();
    $("message").focus();
  } catch (error) {
    complain(error.message);
  }
}

// --- the controls -----------------------------------------------------------------------------------------------------

function listen() {
  listenToPanels();
  $("new").addEventListener("click", newChat);
  $("form").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  $("stop").addEventListener("click", () => pending?.controller.abort());
  $("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    useKey();
  });
  $("other-key").addEventListener("click", () => {
    openPanel("key-panel");
    $("key").focus();
  });
  $("system").addEventListener("change", () => {
    chat.system = $("system").value;
    if (store.has(chat.id)) save(chat);
  });
  $("colour").addEventListener("change", () => {
    messages.marksGuesses = $("colour").checked;
    draw();
  });
  $("export-all").addEventListener("click", exportAll);
  $("import").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", async () => {
    for (const file of $("file").files) await importFile(file);
    $("file").value = "";
  });
  $("message").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    if (pending) pending.controller.abort();
    else if ($("edited")) cancelEdit();
    else openPanel("");
  });
  addEventListener("storage", (event) => {
    if (isChatKey(event.key) && !list.isRenaming) list.draw(chat.id);
  });
  // An answer that is being written is kept as far as it goes; a browser asks before it drops what is not stored.
  addEventListener("pagehide", () => pending && finish(pending));
  addEventListener("beforeunload", (event) => {
    if (store.unsaved.length) event.preventDefault();
  });
}

function begin() {
  listen();
  $("key-place").textContent = server.keyPlace;
  const current = remembered();
  show(chat);
  if (current && store.has(current)) openChat(current);
  if (store.storage === null) {
    say("This browser stores nothing for this page: chats are lost when it is closed. Save what you want to keep as JSON.");
  }
  setInterval(() => {
    if (!document.hidden) showMemory();
  }, MEMORY_MS);
  $("message").focus();
  showMemory();
}

begin();
