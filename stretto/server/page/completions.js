// Completions: every token with what else it could have been. Tokens are text, never HTML.
import { postStream } from "./api.js";
import { number } from "./chat.js";

const byId = (id) => document.getElementById(id);
const percent = (logprob) => `${(100 * Math.exp(logprob)).toFixed(logprob > Math.log(0.0995) ? 0 : 1)} %`;

// Spaces and line ends as one can see and hear them.
const visible = (token) => token.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "(empty)";
const spoken = (token) => token.replaceAll("\n", " line end ").replaceAll("\t", " tab ").trim() || "space";

function sure(logprob) {
  const p = Math.exp(logprob);
  return p >= 0.5 ? "likely" : p >= 0.1 ? "unsure" : "unlikely";
}

export function startCompletions({ say, showProblem }) {
  const prompt = byId("text-prompt"), form = byId("text-form"), stop = byId("text-stop");
  const answer = byId("answer"), popup = byId("alternatives");
  const complete = form.querySelector("[type=submit]");
  let tokens = [];        // { text, logprob, others: [[text, logprob]], node }
  let base = "";          // what they follow
  let abort = null, pinned = false, shownFor = null;

  function hide() {
    popup.hidden = true;
    shownFor?.node.setAttribute("aria-expanded", "false");
    shownFor = null;
    pinned = false;
  }

  function place(node) {
    const at = node.getClientRects()[0] ?? node.getBoundingClientRect();
    const left = Math.min(at.left, document.documentElement.clientWidth - popup.offsetWidth - 8);
    popup.style.left = `${Math.max(4, left) + scrollX}px`;
    const below = at.bottom + 6, fits = below + popup.offsetHeight < innerHeight;
    popup.style.top = `${(fits || at.top < popup.offsetHeight ? below : at.top - 6 - popup.offsetHeight) + scrollY}px`;
  }

  function show(token) {
    if (shownFor !== token) hide();
    shownFor = token;
    popup.replaceChildren(...token.others.map(([text, logprob]) => {
      const row = document.createElement("button");
      row.type = "button";
      const name = document.createElement("span"), bar = document.createElement("progress");
      const share = document.createElement("span");
      name.className = "name";
      name.textContent = visible(text);
      bar.max = 1;
      bar.value = Math.exp(logprob);
      bar.setAttribute("aria-hidden", "true");
      share.className = "percent";
      share.textContent = percent(logprob);
      row.append(name, bar, share);
      const taken = text === token.text;
      row.className = taken ? "taken" : "";
      row.setAttribute("aria-label", `${spoken(text)}, ${percent(logprob)}${taken ? ", taken" : ""}`);
      row.title = taken ? "what was taken" : "go on from this";
      row.disabled = text.includes("\ufffd") && !taken;  // part of a character: not to be written as text
      row.addEventListener("click", () => choose(token, text));
      return row;
    }));
    popup.hidden = false;
    token.node.setAttribute("aria-expanded", "true");
    place(token.node);
  }

  function choose(token, text) {
    const at = tokens.indexOf(token);
    hide();
    if (at < 0 || text === token.text) return tokens[Math.max(at, 0)]?.node.focus();
    run(base + tokens.slice(0, at).map((one) => one.text).join("") + text);
  }

  function focusToken(index) {
    const token = tokens[Math.max(0, Math.min(index, tokens.length - 1))];
    if (!token) return;
    for (const one of tokens) one.node.tabIndex = one === token ? 0 : -1;
    token.node.focus();
  }

  function addToken(text, logprob, top) {
    const others = Object.entries(top).sort((a, b) => b[1] - a[1]);
    const node = document.createElement("span");
    const token = { text, logprob, others, node };
    node.textContent = text;
    node.className = `token ${sure(logprob)}`;
    node.setAttribute("role", "button");
    node.setAttribute("aria-haspopup", "dialog");
    node.setAttribute("aria-expanded", "false");
    const rest = others.filter(([other]) => other !== text).map(([other, lp]) => `${spoken(other)} ${percent(lp)}`);
    node.setAttribute("aria-label", `${spoken(text)}, ${percent(logprob)}; else ${rest.join(", ") || "nothing"}`);
    node.tabIndex = tokens.length ? -1 : 0;
    node.addEventListener("mouseenter", () => { if (!pinned) show(token); });
    node.addEventListener("mouseleave", () => { if (!pinned && document.activeElement !== node) hide(); });
    node.addEventListener("focus", () => { if (!pinned) show(token); });
    node.addEventListener("blur", (event) => { if (!pinned && !popup.contains(event.relatedTarget)) hide(); });
    node.addEventListener("click", () => pin(token));
    tokens.push(token);
    answer.append(node);
  }

  function pin(token) {
    show(token);
    pinned = true;
    popup.querySelector("button:not(:disabled)")?.focus();
  }

  answer.addEventListener("keydown", (event) => {
    const at = tokens.findIndex((token) => token.node === event.target);
    if (at < 0) return;
    const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0,
                 End: tokens.length - 1 }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      focusToken(to);
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      pin(tokens[at]);
    }
  });
  popup.addEventListener("keydown", (event) => {
    const rows = [...popup.querySelectorAll("button:not(:disabled)")];
    const at = rows.indexOf(document.activeElement);
    if (event.key === "ArrowDown") rows[(at + 1) % rows.length].focus();
    else if (event.key === "ArrowUp") rows.at(at - 1).focus();
    else if (event.key === "Escape") {
      const token = shownFor;
      hide();
      token?.node.focus();
      hide();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });
  document.addEventListener("pointerdown", (event) => {
    if (!popup.hidden && !popup.contains(event.target) && !answer.contains(event.target)) hide();
  });

  const follow = () => shownFor && place(shownFor.node);
  addEventListener("resize", follow);
  document.addEventListener("scroll", follow, true);

  async function run(from) {
    abort?.abort();
    hide();
    showProblem("");
    const running = abort = new AbortController();
    base = from;
    tokens = [];
    const begin = document.createElement("span");
    begin.className = "prompt";
    begin.textContent = from;
    answer.replaceChildren(begin);
    stop.disabled = false;
    complete.disabled = true;
    say("The model writes.");
    try {
      const body = { prompt: from, max_tokens: number("text-tokens"), temperature: number("text-temperature"),
                     logprobs: number("text-top") };
      for await (const chunk of postStream("v1/completions", body, running.signal)) {
        const logprobs = chunk.choices[0]?.logprobs;
        if (abort !== running) return;
        logprobs?.tokens.forEach((text, i) => addToken(text, logprobs.token_logprobs[i], logprobs.top_logprobs[i]));
      }
      say(`The model: ${tokens.map((token) => token.text).join("")}`);
    } catch (error) {
      if (error.name === "AbortError") say("Stopped.");
      else showProblem(`The completion failed: ${error.message}`);
    }
    if (abort !== running) return;
    abort = null;
    stop.disabled = true;
    complete.disabled = false;
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    run(prompt.value);
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  byId("completions").addEventListener("keydown", (event) => {
    if (event.key === "Escape") abort?.abort();
  });
  stop.addEventListener("click", () => {
    abort?.abort();
    prompt.focus();
  });
}
