// Chat: one conversation, answered as a stream. What a model writes is text everywhere, never HTML.
import { postStream } from "./api.js";

const byId = (id) => document.getElementById(id);

function element(tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

export function number(id) {
  const field = byId(id);
  return field.value === "" ? undefined : field.valueAsNumber;
}

// A message on the page, whose text may grow.
class Bubble {
  constructor(role) {
    this.root = element("article", `message ${role}`);
    this.root.append(element("div", "who", role === "user" ? "You" : "Model"));
    this.text = "";
    this.parts = [];
    this.body = element("div", "body");
    this.root.append(this.body);
  }

  // Text and, between lines of ```, blocks of code. Only what changed is touched.
  show(text) {
    this.text = text;
    const pieces = text.split(/^```.*\n?/m);
    while (this.parts.length > pieces.length) this.parts.pop().remove();
    pieces.forEach((piece, index) => {
      if (!this.parts[index]) {
        const isCode = index % 2 === 1;
        this.parts[index] = element(isCode ? "pre" : "div", isCode ? "code" : "text");
        this.body.append(this.parts[index]);
      }
      const shown = index ? piece : piece.trimStart();
      if (this.parts[index].textContent !== shown) this.parts[index].textContent = shown;
    });
  }

  reason(text) {
    if (!this.reasoning) {
      const details = element("details", "");
      details.append(element("summary", "", "Reasoning"));
      this.reasoning = element("div", "text");
      details.append(this.reasoning);
      this.root.insertBefore(details, this.body);
    }
    this.reasoning.textContent += text;
  }

  call(text) {
    this.root.append(element("div", "call", text));
  }

  note(text) {
    this.root.append(element("p", "faint", text));
  }
}

const ENDS = { length: "The limit of tokens ended this answer.", abort: "The server ended this answer." };

export function startChat({ say, showProblem }) {
  const log = byId("log"), text = byId("chat-text"), form = byId("chat-form"), stop = byId("chat-stop");
  const send = form.querySelector("[type=submit]");
  const empty = log.firstElementChild;
  let messages = [], abort = null, refused = false;

  const add = (bubble) => {
    empty.remove();
    log.append(bubble.root);
    log.scrollTop = log.scrollHeight;
  };
  const setBusy = (busy) => {
    stop.disabled = !busy;
    send.disabled = busy || refused;
  };

  function body() {
    const system = byId("chat-system").value.trim();
    return {
      messages: [...(system ? [{ role: "system", content: system }] : []), ...messages],
      temperature: number("chat-temperature"), max_completion_tokens: number("chat-tokens"),
    };
  }

  async function answer(signal, bubble) {
    let content = "", end = null;
    const calls = [];
    for await (const chunk of postStream("v1/chat/completions", body(), signal)) {
      const choice = chunk.choices[0];
      if (!choice) continue;
      const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
      if (choice.delta.reasoning) bubble.reason(choice.delta.reasoning);
      for (const delta of choice.delta.tool_calls ?? []) {
        calls[delta.index] ??= { name: "", text: "" };
        calls[delta.index].name += delta.function?.name ?? "";
        calls[delta.index].text += delta.function?.arguments ?? "";
      }
      if (choice.delta.content) bubble.show(content += choice.delta.content);
      end = choice.finish_reason ?? end;
      if (atEnd) log.scrollTop = log.scrollHeight;
    }
    for (const call of calls) bubble.call(`${call.name}(${call.text})`);
    if (ENDS[end]) bubble.note(ENDS[end]);
  }

  async function ask() {
    const asked = text.value;
    if (!asked.trim() || abort || refused) return;
    showProblem("");
    messages.push({ role: "user", content: asked });
    const mine = new Bubble("user"), its = new Bubble("assistant");
    mine.show(asked);
    add(mine);
    its.show("");
    its.root.classList.add("writing");
    add(its);
    text.value = "";
    abort = new AbortController();
    const running = abort, conversation = messages;
    setBusy(true);
    say("The model writes.");
    try {
      await answer(running.signal, its);
      say(`The model: ${its.text}`);
    } catch (error) {
      if (error.name === "AbortError") {
        its.note("Stopped.");
        say("Stopped.");
      } else {
        showProblem(`The answer failed: ${error.message}`);
      }
    }
    its.root.classList.remove("writing");
    if (its.text) {
      conversation.push({ role: "assistant", content: its.text });
    } else if (conversation === messages && !its.root.querySelector(".call, details")) {
      // Nothing came: the question is asked again, or changed.
      conversation.pop();
      mine.root.remove();
      its.root.remove();
      text.value ||= asked;
      if (!messages.length) log.append(empty);
    }
    if (abort === running) {
      abort = null;
      setBusy(false);
    }
  }

  const end = () => abort?.abort();
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask();
  });
  text.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    ask();
  });
  byId("chat").addEventListener("keydown", (event) => {
    if (event.key === "Escape") end();
  });
  stop.addEventListener("click", () => {
    end();
    text.focus();
  });
  byId("chat-new").addEventListener("click", () => {
    end();
    messages = [];
    log.replaceChildren(empty);
    text.focus();
  });

  return {
    // Chat cannot be had with this model.
    refuse(why) {
      refused = true;
      const note = byId("no-chat");
      note.textContent = `This model cannot chat here: ${why}. Completions work.`;
      note.hidden = false;
      for (const field of form.querySelectorAll("textarea, input, button")) field.disabled = true;
      log.hidden = true;
    },
  };
}
