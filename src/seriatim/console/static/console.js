// Live pages, buttons that call the API, dialogs, keyboard and theme. No other script is loaded.
"use strict";

const base = document.body.dataset.base;
const byId = (id) => document.getElementById(id);
const theme = localStorage.getItem("seriatim-theme");
if (theme) document.documentElement.dataset.theme = theme;

async function api(operation, values) {
  const response = await fetch(`${base}/api/v1/${operation}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(values),
  });
  return answerOf(response);
}

async function look(operation, values) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values))
    for (const one of Array.isArray(value) ? value : [value]) if (one !== null) query.append(name, one);
  return answerOf(await fetch(`${base}/api/v1/${operation}?${query}`));
}

async function answerOf(response) {
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.message);
  return answer;
}

let hiding = 0;
function toast(text, isBad = false) {
  const box = byId("toast");
  box.textContent = text;
  box.className = isBad ? "bad" : "";
  box.hidden = false;
  clearTimeout(hiding);
  hiding = setTimeout(() => { box.hidden = true; }, isBad ? 12000 : 5000);
}

// -- live ------------------------------------------------------------------------------------------------------------

let isFetching = false;
let pressed = 0; // until when the page stays as it is: what is under a mouse button must not be replaced, or the click is lost
document.addEventListener("pointerdown", () => { pressed = Date.now() + 1500; }, true);
document.addEventListener("click", () => { pressed = 0; });
async function refresh() {
  const live = byId("live");
  const isBusy = live && (byId("ask").open || live.contains(document.activeElement) && document.activeElement.matches("input,select"));
  if (!live || isFetching || isBusy || document.hidden) return;
  isFetching = true;
  try {
    const response = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (response.redirected && new URL(response.url).pathname.endsWith("/login")) location.reload();
    if (!response.ok) return;
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html").getElementById("live");
    if (fresh && Date.now() > pressed) replace(live, fresh);
  } catch { /* the event stream says when the server is back */ } finally { isFetching = false; }
}

function replace(live, fresh) {
  if (live.innerHTML === fresh.innerHTML) return;
  const checked = new Set([...live.querySelectorAll("input:checked")].map((box) => box.value));
  const focused = live.contains(document.activeElement) ? document.activeElement : null;
  const scrolled = [...live.querySelectorAll(".scroll,.lane")].map((box) => box.scrollLeft);
  live.innerHTML = fresh.innerHTML;
  for (const box of live.querySelectorAll("input[type=checkbox]")) box.checked = checked.has(box.value);
  [...live.querySelectorAll(".scroll,.lane")].forEach((box, index) => { box.scrollLeft = scrolled[index] || 0; });
  if (!focused) return;
  const all = [...live.querySelectorAll("a,button")], post = focused.dataset.post;
  (all.find((one) => one.outerHTML === focused.outerHTML) || all.find((one) => post && one.dataset.post === post))?.focus();
}

// A browser has six connections to a server: one tab listens for all, or the seventh would never load.
function listen() {
  const connection = byId("connection");
  if (!connection) return;
  const channel = new BroadcastChannel(`seriatim${base}`);
  const tell = (isLive) => { connection.textContent = isLive ? "● live" : "○ connection lost, trying again"; refresh(); };
  const tellAll = (isLive) => { tell(isLive); channel.postMessage(isLive); };
  channel.onmessage = (event) => tell(event.data);
  const open = () => {
    const events = new EventSource(`${base}/api/v1/events`);
    events.addEventListener("tick", () => tellAll(true));
    events.onerror = () => {
      tellAll(false);
      if (events.readyState === EventSource.CLOSED) setTimeout(open, 3000); // it was refused: browsers don't try that again
    };
  };
  if (navigator.locks) navigator.locks.request(`seriatim${base}`, () => new Promise(open));
  else open();
}

// -- questions -------------------------------------------------------------------------------------------------------

function ask({ title, lines, choices, reason = false }) {
  const dialog = byId("ask");
  byId("ask-title").textContent = title;
  byId("ask-text").replaceChildren(...lines.map((line) => Object.assign(document.createElement("p"), { textContent: line })));
  byId("ask-reason").hidden = !reason;
  byId("ask-choices").replaceChildren(...choices.map(([value, label, style]) =>
    Object.assign(document.createElement("button"), { value, textContent: label, className: style || "primary" })));
  byId("ask-cancel").textContent = choices.length ? "Cancel" : "Close";
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => {
    const given = dialog.querySelector("[name=reason]").value.trim();
    dialog.querySelector("[name=reason]").value = "";
    resolve({ answer: dialog.returnValue || "no", reason: given });
  }, { once: true }));
}

async function act(button) {
  const { post, confirm, explain } = button.dataset;
  const values = JSON.parse(button.dataset.arguments);
  if (confirm) {
    const { answer, reason } = await ask({
      title: confirm, lines: explain ? [explain] : [], choices: [["yes", button.textContent, "primary"]], reason: "reason" in button.dataset,
    });
    if (answer !== "yes") return;
    if (reason) values[post === "keys/dead-letter" ? "error" : "reason"] = reason;
  }
  await run(button, async () => { await api(post, values); toast(button.dataset.done || `Done: ${button.textContent}`); });
}

async function redrive(button, values) {
  const preview = await look("dead-letters/preview", values);
  const refused = preview.refused.map((one) => `${one.letters} can't go back: ${one.reason} (for example message ${one.example})`);
  const choices = [];
  if (preview.in_place) choices.push(["place", `Put ${preview.in_place} back in place`]);
  if (preview.refused.length) choices.push(["append", `Append all ${preview.letters} at the end`, ""]);
  const { answer } = await ask({
    title: `Redrive ${preview.letters} dead ${preview.letters === 1 ? "letter" : "letters"}?`,
    lines: [`${preview.in_place} ${preview.in_place === 1 ? "goes back to its place" : "go back to their places"}, before later messages of the same key.`, ...refused], choices,
  });
  if (answer === "no") return;
  const outcome = await api("dead-letters/redrive-all", { ...values, append: answer === "append" });
  const left = Object.values(outcome.refused).reduce((sum, count) => sum + count, 0);
  toast(`${outcome.redriven} redriven${left ? `, ${left} refused` : ""}`, left > 0);
}

async function bulk(button) {
  const live = byId("live");
  const subscription = live.dataset.subscription;
  const message_ids = [...live.querySelectorAll("#letters tbody input:checked")].map((box) => box.value);
  if (!message_ids.length) return toast("Select some dead letters first.", true);
  if (button.dataset.selected === "redrive") return run(button, () => redrive(button, { subscription, message_ids }));
  const { answer } = await ask({
    title: `Discard ${message_ids.length} dead letters?`, lines: ["Nobody gets them back. Download them first if you may need them."], choices: [["yes", "Discard", "danger"]],
  });
  if (answer === "yes") await run(button, async () => { await api("dead-letters/purge", { subscription, message_ids }); toast("Discarded."); });
}

async function run(button, work) {
  button.disabled = true;
  try { await work(); } catch (error) {
    toast(error instanceof TypeError ? "No answer from the console: look again whether this was done." : error.message, true);
  } finally { button.disabled = false; refresh(); }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.post) act(button);
  else if (button.dataset.redrive) run(button, () => redrive(button, JSON.parse(button.dataset.redrive)));
  else if (button.dataset.selected) bulk(button);
  else if (button.id === "theme") switchTheme();
  else if (button.id === "help") help();
  else if (button.id === "ask-cancel") byId("ask").close("no");
});
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.id !== "publish") return;
  event.preventDefault();
  run(form.querySelector("button"), async () => {
    const [key, data] = [form.elements.key.value || null, form.elements.data.value];
    const [id] = await api("messages/publish", { topic: form.dataset.topic, messages: [{ key, data }] });
    toast(`Published message ${id}`);
    form.elements.data.value = "";
  });
});
document.addEventListener("change", (event) => {
  if (!event.target.matches("[data-all]")) return;
  for (const box of event.target.closest("table").querySelectorAll("tbody input[type=checkbox]")) box.checked = event.target.checked;
});

// -- keyboard and theme ----------------------------------------------------------------------------------------------

function switchTheme() {
  const isDark = getComputedStyle(document.documentElement).colorScheme === "dark";
  document.documentElement.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem("seriatim-theme", document.documentElement.dataset.theme);
}

function help() {
  ask({ title: "Keyboard", lines: ["o: overview", "t: topics", "p: pipelines", "s: Sparkplug", "c: changes", "/: search", "r: retry, when a key waits for its time", "?: this help"], choices: [] });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input,select,textarea") || byId("ask").open) return;
  if (event.key === "?") return help();
  const target = event.key === "r" ? document.querySelector('[data-post="keys/retry"]') : document.querySelector(`[data-shortcut="${CSS.escape(event.key)}"]`);
  if (!target) return;
  event.preventDefault();
  if (target.matches("input")) target.focus(); else target.click();
});

listen();
