// What the pages do besides being there: they renew themselves, choose all, and play. Without it each works by reloading.
"use strict";

// renew takes what has changed out of another version of the page, and tells whether that was all of it. What somebody is at stays: an open
// detail, a checked box, what was entered, the focus. What somebody is writing into is left for another time.
function renew(text) {
  const fresh = new DOMParser().parseFromString(text, "text/html");
  let all = true;
  for (const old of document.querySelectorAll("[data-renew]")) {
    const now = fresh.getElementById(old.id);
    if (!now || now.innerHTML === old.last) continue;
    const inside = old.contains(document.activeElement);
    if (pressed && old.contains(pressed)) { // a button that is replaced now would not be clicked
      all = false;
      continue;
    }
    if (inside && document.activeElement.matches("input:not([type=checkbox]), textarea, select")) {
      all = false;
      continue;
    }
    const focused = inside ? name(document.activeElement) : null;
    const entered = new Map();
    for (const e of old.querySelectorAll("input:not([type=hidden])")) {
      if (e.value !== e.defaultValue || e.checked !== e.defaultChecked) entered.set(input(e), e);
    }
    const open = [...old.querySelectorAll("details[open] > summary")].map((summary) => summary.textContent);
    old.last = now.innerHTML;
    old.innerHTML = now.innerHTML;
    for (const e of old.querySelectorAll("input:not([type=hidden])")) {
      const before = entered.get(input(e));
      if (before) [e.value, e.checked] = [before.value, before.checked];
    }
    for (const summary of old.querySelectorAll("details > summary")) {
      if (open.includes(summary.textContent)) summary.parentElement.open = true;
    }
    if (focused) [...old.querySelectorAll("a, button, input, summary")].find((e) => name(e) === focused)?.focus();
  }
  chooseAll();
  if (!fresh.body.dataset.live && all) delete document.body.dataset.live;
}

// pressed is what a pointer is held down on.
let pressed = null;
addEventListener("pointerdown", (event) => { pressed = event.target; });
for (const over of ["pointerup", "pointercancel"]) addEventListener(over, () => setTimeout(() => { pressed = null; }));

// input tells the inputs of a part of a page apart.
function input(e) { return [e.name, e.type === "checkbox" ? e.defaultValue : ""].join(" "); }

// name tells elements of a page apart.
function name(e) { return [e.tagName, e.getAttribute("href"), e.name, e.value, e.textContent].join(" "); }

// live renews the page while there is something to see.
async function live() {
  const stale = document.getElementById("stale");
  const seen = new Date();
  for (const e of document.querySelectorAll("[data-renew]")) e.last = e.innerHTML;
  let answered = seen;
  setTimeout(() => document.querySelector(".flash")?.remove(), 6000); // what was just done is no news any more
  while (document.body.dataset.live) {
    await new Promise((done) => setTimeout(done, Number(document.body.dataset.live)));
    if (document.hidden) continue;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (answer.status === 404) { location.reload(); return; }
      if (!answer.ok) throw new Error(String(answer.status));
      renew(await answer.text());
      answered = new Date();
      stale.textContent = "";
    } catch {
      stale.textContent = "not renewed since " + answered.toLocaleTimeString();
    }
  }
}

// chooseAll has the box above a list choose all of it.
function chooseAll() {
  const every = document.getElementById("every");
  if (!every) return;
  every.hidden = false;
  every.onchange = () => { for (const box of document.querySelectorAll("input[name=id]")) box.checked = every.checked; };
}

// arrows have the arrow keys move along a strip, of which the tab key comes to one range.
function arrows() {
  document.addEventListener("keydown", (event) => {
    const all = event.target.closest?.(".strip > svg")?.querySelectorAll("a");
    if (!all) return;
    const at = [...all].indexOf(event.target);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: all.length - 1 }[event.key];
    if (at < 0 || !all[to]) return;
    event.preventDefault();
    all[at].setAttribute("tabindex", "-1");
    all[to].setAttribute("tabindex", "0");
    all[to].focus();
  });
}

// player has a replay play.
function player() {
  const form = document.getElementById("player");
  if (!form) return;
  const frame = document.getElementById("frame");
  const clock = document.getElementById("clock");
  const play = document.getElementById("play");
  const times = form.dataset.times.split("|");
  const slots = [...document.querySelectorAll("[data-final]")];
  const show = () => {
    const at = Number(frame.value) - 1;
    for (const slot of slots) {
      const d = slot.dataset;
      slot.setAttribute("class", at >= d.done ? d.final : at >= d.began ? "running" : at >= d.born ? "pending" : "uncut");
    }
    clock.textContent = times[at] + " of " + times[times.length - 1];
  };
  let timer = 0;
  const stop = () => { clearInterval(timer); timer = 0; play.textContent = "Play"; };
  play.hidden = false;
  document.getElementById("show").hidden = true;
  play.onclick = () => {
    if (timer) return stop();
    if (frame.value === frame.max) frame.value = 1;
    play.textContent = "Stop";
    show();
    timer = setInterval(() => {
      if (frame.value === frame.max) return stop();
      frame.value = Number(frame.value) + 1;
      show();
    }, 200);
  };
  frame.oninput = () => { stop(); show(); };
}

chooseAll();
arrows();
player();
live();
