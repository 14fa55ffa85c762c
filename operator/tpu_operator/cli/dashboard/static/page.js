// Keeps the page as the server sees it, and turns times into ages. The server sends whole fragments; nothing that
// comes in them runs: they are parsed as a document without scripts, under a policy that allows none but this file.
"use strict";

const main = document.querySelector("main");
const lost = document.getElementById("lost");

function age(seconds) {
  const left = Math.max(0, Math.floor(seconds));
  if (left < 120) return `${left}s`;
  for (const [size, unit, smaller, small] of [[86400, "d", 3600, "h"], [3600, "h", 60, "m"], [60, "m", 1, "s"]]) {
    if (left >= size) {
      const whole = Math.floor(left / size);
      const more = Math.floor((left % size) / smaller);
      return more && whole < 10 ? `${whole}${unit}${more}${small}` : `${whole}${unit}`;
    }
  }
}

function tellAges() {
  for (const time of document.querySelectorAll("time")) {
    const then = Date.parse(time.dateTime);
    if (Number.isNaN(then)) continue;
    if (!time.title) time.title = time.textContent;
    time.textContent = `${age((Date.now() - then) / 1000)} ago`;
  }
}

let held = null;

function show(html) {
  held = document.getSelection().type === "Range" ? html : null; // somebody copies something: later
  if (held) return;
  const focused = document.activeElement?.getAttribute("href");
  const next = new DOMParser().parseFromString(html, "text/html");
  main.replaceChildren(...next.body.childNodes);
  tellAges();
  if (focused) main.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
}

const source = new EventSource(`/stream${location.pathname}`);
source.onmessage = (event) => show(JSON.parse(event.data));
source.addEventListener("end", (event) => {
  source.close();
  show(JSON.parse(event.data));
});
source.onopen = () => (lost.hidden = true);
source.onerror = () => (lost.hidden = false);

document.addEventListener("selectionchange", () => held && show(held));
tellAges();
setInterval(tellAges, 1000);
