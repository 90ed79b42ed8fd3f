/** The parts of the page that open and close, and its two lines of notes. */

const PANELS = ["chats", "memory-panel", "options", "key-panel"];

/** Return the element with an id. */
export const $ = (id) => document.getElementById(id);

/** Show what went wrong, in place of what was shown before; an empty text clears it. */
export function complain(message) {
  $("alert").textContent = message;
}

/** Say something that is no error, with a button if there is something to do; an empty text clears it. */
export function say(text, name = "", action = null) {
  $("notice").textContent = text;
  if (!action) return;
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = name;
  made.addEventListener("click", () => {
    say("");
    action();
  });
  $("notice").append(made);
}

/** Open a panel, and close the others, so that the conversation keeps its room; an empty name closes all of them. */
export function openPanel(name) {
  for (const panel of PANELS) {
    $(panel).hidden = panel !== name;
    document.querySelector(`[aria-controls="${panel}"]`)?.setAttribute("aria-expanded", String(panel === name));
  }
}

/** Let the buttons of the head open and close their panels. */
export function listenToPanels() {
  for (const one of document.querySelectorAll("header [aria-controls]")) {
    const panel = one.getAttribute("aria-controls");
    one.addEventListener("click", () => openPanel($(panel).hidden ? panel : ""));
  }
}
