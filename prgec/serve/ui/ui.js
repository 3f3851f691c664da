"use strict";
// Fetches the parts of a page that change and puts them in place; without this script everything else still works.

const PERIOD_MS = 1000;
const said = document.getElementById("said");

function say(text) {
  if (said.textContent !== text) said.textContent = text;
}

function put(box, text) {
  const chosen = new Set([...box.querySelectorAll("input:checked")].map((each) => each.value));
  const open = [...box.querySelectorAll("details")].map((each) => each.open);
  const focused = box.contains(document.activeElement) ? [...box.querySelectorAll("a,button,input,summary,pre")].indexOf(document.activeElement) : -1;
  const before = box.querySelector("[data-status]")?.dataset.status;
  box.innerHTML = text;
  for (const each of box.querySelectorAll("input[type=checkbox]")) each.checked = chosen.has(each.value);
  box.querySelectorAll("details").forEach((each, place) => { if (place in open) each.open = open[place]; });
  if (focused >= 0) box.querySelectorAll("a,button,input,summary,pre")[focused]?.focus({ preventScroll: true });
  const state = box.querySelector("[data-status]");
  if (state && state.dataset.status !== before) say(`now ${state.dataset.status}`);
  for (const each of document.querySelectorAll("[data-while]")) each.hidden = state?.dataset.state !== each.dataset.while;
}

function follow(box) {
  let seen = "";
  async function ask() {
    let isDone = false;
    if (!document.hidden) {
      try {
        const answer = await fetch(box.dataset.live, { headers: seen ? { "If-None-Match": seen } : {} });
        if (answer.status === 200) {
          seen = answer.headers.get("ETag") ?? "";
          put(box, await answer.text());
        }
        if (said.textContent.startsWith("no answer")) say("");
        isDone = answer.headers.has("X-Done") || answer.status === 401;
      } catch {
        say("no answer: prgec ui has ended; runs go on");
      }
    }
    if (isDone) {
      // The page of an ended run has more than its curves.
      if (box.dataset.done === undefined && document.querySelector("main header")) location.reload();
    } else {
      setTimeout(ask, PERIOD_MS);
    }
  }
  if (box.dataset.done === undefined) setTimeout(ask, PERIOD_MS);
}

document.querySelectorAll("[data-live]").forEach(follow);

for (const form of document.querySelectorAll("form[data-busy]")) {
  form.addEventListener("submit", () => {
    say(form.dataset.busy || "one moment");
    // After the form has been read: a disabled button says nothing.
    setTimeout(() => form.querySelectorAll("button").forEach((each) => { each.disabled = true; }));
  });
}
addEventListener("pageshow", (event) => {
  if (event.persisted) location.reload();
});
