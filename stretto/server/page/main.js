// The page at `/`: tabs, the key, what is wrong. chat.js, completions.js and engine.js do the rest.
import { onKeyNeeded } from "./api.js";
import { startChat } from "./chat.js";
import { startCompletions } from "./completions.js";
import { startEngine } from "./engine.js";

const byId = (id) => document.getElementById(id);

// Beside the picture a problem is told in words, once.
function showProblem(message) {
  const box = byId("problem");
  box.hidden = !message;
  if (box.textContent !== message) box.textContent = message;
}

// To who listens rather than looks.
function say(text) {
  byId("said").textContent = text;
}

function startTabs() {
  const tabs = [...document.querySelectorAll("[role=tab]")];
  const select = (tab) => {
    for (const one of tabs) {
      const chosen = one === tab;
      one.setAttribute("aria-selected", chosen);
      one.tabIndex = chosen ? 0 : -1;
      byId(one.getAttribute("aria-controls")).hidden = !chosen;
    }
    history.replaceState(null, "", `#${tab.getAttribute("aria-controls")}`);
  };
  tabs.forEach((tab, index) => {
    tab.addEventListener("click", () => select(tab));
    tab.addEventListener("keydown", (event) => {
      const to = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: -1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      const next = tabs.at(to % tabs.length);
      select(next);
      next.focus();
    });
  });
  const named = tabs.find((tab) => `#${tab.getAttribute("aria-controls")}` === location.hash);
  if (named) select(named);
  return { select: (id) => select(byId(`tab-${id}`)), isNamed: named !== undefined };
}

// A promise of the key that the user types.
function askKey(wasWrong) {
  const dialog = byId("key");
  const before = document.activeElement;
  byId("key-wrong").hidden = !wasWrong;
  byId("key-text").value = "";
  dialog.showModal();
  byId("key-text").focus();
  return new Promise((resolve) => {
    let key = "";
    byId("key-form").onsubmit = () => { key = byId("key-text").value; };
    dialog.onclose = () => {
      if (!key) return dialog.showModal();  // nothing works without it
      resolve(key);
      before?.focus?.();
    };
  });
}

onKeyNeeded(askKey);
const tabs = startTabs();
const chat = startChat({ say, showProblem });
startCompletions({ say, showProblem });
let isFirst = true;
startEngine({
  showProblem,
  onStats(stats) {
    if (!isFirst) return;
    isFirst = false;
    byId("model").textContent = `${stats.model} · context of ${stats.max_model_len.toLocaleString("en")} tokens`;
    document.title = `${stats.model} · stretto`;
    if (stats.chat.available) return;
    chat.refuse(stats.chat.missing);
    if (!tabs.isNamed) tabs.select("completions");
  },
});
