/** The page of a site: the plan, the loading of the model, and the chat. What it does is in `runtime/`. */

import { Conversation } from "./runtime/conversation.js";
import { adapterName, findAdapter } from "./runtime/device.js";
import { fetchSite, loadModel } from "./runtime/load.js";
import { makePlan, mebibytes, refusals } from "./runtime/plan.js";

const $ = (id) => document.getElementById(id);
const INEXACT =
  "This GPU does not compute as the CPU does: it wrote other tokens after a known text than edgedec. Answers may differ from " +
  "those of edgedec, or be wrong; a newer driver or browser may help.";
const SECTIONS = ["plan", "loading", "chat"];
const base = new URL("./", document.baseURI);
let conversation = null;
let session = null;
let running = null; // the AbortController of the loading, or of the answer that is being written

function show(section, state) {
  for (const name of SECTIONS) $(name).hidden = name !== section;
  $("state").textContent = state;
}

/** Show an error above a section, or in place of all of them. */
function fail(error, section = "") {
  show(section, "");
  $("alert").textContent = error.message;
}

function element(name, className, text) {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}

function row(name, value) {
  const line = document.createElement("tr");
  const head = element("th", "", name);
  head.scope = "row";
  line.append(head, element("td", "", value));
  return line;
}

async function begin() {
  const site = await fetchSite(base);
  $("model").textContent = site.model;
  document.title = `${site.model} - edgedec`;
  const plan = makePlan(site);
  $("figures").replaceChildren(
    row("To fetch from this site", mebibytes(plan.downloadBytes)),
    row("GPU memory for the model; browser and driver take more", mebibytes(plan.gpuBytes)),
    ...Object.entries(plan.items).map(([name, bytes]) => row(`of it, ${name}`, mebibytes(bytes))),
    row("Context", `${site.positions} tokens`),
  );
  $("facts").hidden = false; // it stays below the talk
  show("plan", "");
  const adapter = await findAdapter(navigator, isSecureContext);
  $("figures").append(
    row("This GPU", adapterName(adapter)),
    ...Object.keys(plan.requiredLimits).map((name) => row(`its ${name}`, String(adapter.limits[name]))),
  );
  const asked = new URLSearchParams(location.search).get("budget") ?? "";
  $("budget").value = asked;
  let isUnread = asked !== "" && $("budget").value === ""; // the field takes numbers only
  const check = () => {
    const budget = $("budget").value === "" ? null : Number($("budget").value) * 2 ** 20;
    const reasons = refusals(plan, adapter.limits, budget);
    if (isUnread) reasons.push(`the address says budget=${asked}, which must be a number of MiB; write it into the field`);
    $("refusals").replaceChildren(...reasons.map((reason) => element("li", "", reason)));
    $("load").disabled = reasons.length > 0;
  };
  $("budget").addEventListener("input", () => {
    isUnread = false;
    check();
  });
  $("load").addEventListener("click", () => load(site, plan));
  check();
}

async function load(site, plan) {
  running = new AbortController();
  const { signal } = running;
  $("alert").textContent = "";
  show("loading", "");
  try {
    session = await loadModel(base, site, plan, { navigator, signal, onStage, onBytes: showAmount });
  } catch (error) {
    if (signal.aborted) show("plan", "");
    else fail(error, "plan");
    return;
  } finally {
    running = null;
  }
  conversation = new Conversation(session.tokenizer, session.template, session.positions);
  globalThis.edgedec = { session, conversation };
  session.executor.whenLost.then(({ message }) => ($("alert").textContent = message));
  const notes = [];
  if (!session.template) notes.push("The model has no chat template; it continues messages and answers as plain lines.");
  if (session.isExact === false) notes.push(INEXACT);
  show("chat", notes.join(" "));
  $("message").focus();
}

function onStage(text) {
  $("stage").textContent = text;
  $("amount").textContent = "";
  $("progress").removeAttribute("value");
}

function showAmount(done, total) {
  $("progress").value = done / total;
  $("amount").textContent = `${mebibytes(done)} of ${mebibytes(total)}`;
}

function buttons() {
  const isBusy = running !== null;
  $("send").disabled = isBusy;
  $("stop").disabled = !isBusy;
  $("clear").disabled = isBusy || !conversation.turns.length;
  $("conversation").setAttribute("aria-busy", String(isBusy));
}

/** Add a message to the page and return the element of its text. */
function showMessage(role, content) {
  const article = element("article", role, "");
  const text = element("div", "text", content);
  article.append(element("h2", "", role === "user" ? "You" : "Model"), text);
  $("conversation").append(article);
  article.scrollIntoView({ block: "end" });
  return text;
}

/** Send a message and write its answer. A message that fails does not become part of the conversation. */
async function send() {
  const message = $("message").value.trim();
  if (!message || running) return;
  running = new AbortController();
  $("alert").textContent = "";
  $("speed").textContent = "Reading";
  $("message").value = "";
  buttons();
  const question = showMessage("user", message);
  const text = showMessage("assistant", "");
  const most = $("most").value === "" ? Infinity : Number($("most").value);
  try {
    const { ids, dropped } = conversation.ask(message);
    const answer = await session.generate(ids, {
      mostTokens: most,
      signal: running.signal,
      onPrompt: (read, total) => ($("speed").textContent = `Reading ${read} of ${total} tokens`),
      onText: (piece, tokens) => {
        $("speed").textContent = `Writing, ${tokens} tokens`;
        text.append(piece);
      },
    });
    finish(message, answer, dropped, question, text);
  } catch (error) {
    $("alert").textContent = error.message;
    $("speed").textContent = "";
    $("message").value = message;
    for (const one of [question, text]) one.parentElement.remove();
  }
  running = null;
  buttons();
}

function finish(message, answer, dropped, question, text) {
  $("speed").textContent = answer.reason === "interrupted" ? "Stopped" : "Done";
  if (!answer.tokens.length) {
    for (const one of [question, text]) one.parentElement.remove();
    $("message").value = message;
    return;
  }
  conversation.answered(message, answer.text);
  const speed = answer.tokens.length / Math.max(answer.seconds, 0.001);
  const parts = [
    `${answer.tokens.length} tokens, ${speed.toFixed(1)} per second; ended by: ${answer.reason}`,
    `prompt: ${answer.promptTokens} tokens, ${answer.cachedTokens} of them in the cache`,
  ];
  if (dropped) parts.push(`the oldest ${dropped} turns were dropped, because the context is full`);
  text.after(element("div", "figures", parts.join("; ")));
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
for (const id of ["stop", "cancel"]) $(id).addEventListener("click", () => running?.abort());
$("clear").addEventListener("click", () => {
  conversation.cut(0);
  $("conversation").replaceChildren();
  buttons();
  $("message").focus();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
$("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
begin().catch((error) => fail(error, $("figures").childElementCount ? "plan" : undefined));
