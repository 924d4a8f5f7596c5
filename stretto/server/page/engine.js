// The engine's numbers, asked a second at a time and drawn over two minutes.
import { getJson } from "./api.js";

const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const EVERY = 1000;       // ms
const KEPT = 120;         // samples
const WIDTH = 240, HEIGHT = 64;
const MOST_ROWS = 60;     // of running requests

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; count >= 1024 && unit < units.length - 1; ++unit) count /= 1024;
  return `${count.toFixed(count < 10 && unit ? 1 : 0)} ${units[unit]}`;
}

// One line or more over time; the first is filled. `most`: what the full height is worth.
function draw(id, lines, most, label) {
  const svg = byId(id);
  const point = (value, i, all) =>
    `${(WIDTH - (all.length - 1 - i) * WIDTH / (KEPT - 1)).toFixed(1)},` +
    `${(HEIGHT - 4 - Math.min(value / most, 1) * (HEIGHT - 8)).toFixed(1)}`;
  const paths = lines.flatMap((values, index) => {
    if (!values.length) return [];
    const line = `M${values.map(point).join("L")}`;
    const start = WIDTH - (values.length - 1) * WIDTH / (KEPT - 1);
    const shapes = index ? [[line, "second"]] : [[`${line}L${WIDTH},${HEIGHT}L${start.toFixed(1)},${HEIGHT}Z`, "area"],
                                                [line, "first"]];
    return shapes.map(([shape, name]) => {
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("d", shape);
      path.setAttribute("class", name);
      return path;
    });
  });
  svg.replaceChildren(...paths);
  svg.setAttribute("aria-label", label);
}

function showRequests(requests) {
  const list = byId("running");
  byId("running-none").hidden = requests.length > 0;
  const shown = requests.slice(0, MOST_ROWS);
  while (list.children.length > shown.length) list.lastElementChild.remove();
  while (list.children.length < shown.length) {
    const row = document.createElement("li"), bar = document.createElement("progress");
    row.append(document.createElement("span"), bar, document.createElement("span"));
    list.append(row);
  }
  shown.forEach((one, i) => {
    const [what, bar, count] = list.children[i].children;
    what.textContent = one.state === "waiting" ? "waits" : `${one.prompt_tokens} in`;
    bar.max = one.max_tokens;
    bar.value = one.tokens;
    bar.setAttribute("aria-label", `${one.tokens} of at most ${one.max_tokens} tokens written`);
    count.textContent = `${one.tokens} out`;
  });
}

export function startEngine({ showProblem, onStats }) {
  const history = [];  // { time, stats, rate }
  let failed = false;

  function show(stats) {
    const now = performance.now(), last = history.at(-1);
    const seconds = last ? (now - last.time) / 1000 : 1;
    const rate = last ? Math.max(0, stats.generated_tokens - last.stats.generated_tokens) / seconds : 0;
    history.push({ time: now, stats, rate });
    if (history.length > KEPT) history.shift();

    const rates = history.map((one) => one.rate), most = Math.max(1, ...rates);
    byId("rate").textContent = Math.round(rate).toLocaleString("en");
    draw("rate-picture", [rates], most * 1.1,
         `Tokens a second over the last two minutes: now ${Math.round(rate)}, at most ${Math.round(most)}`);

    const running = history.map((one) => one.stats.running), waiting = history.map((one) => one.stats.waiting);
    byId("requests").textContent = stats.running + (stats.waiting ? ` + ${stats.waiting}` : "");
    draw("requests-picture", [running, waiting], 1.1 * Math.max(1, ...running, ...waiting),
         `Requests: ${stats.running} running, ${stats.waiting} waiting`);

    const use = stats.cache.use;
    const share = `${(100 * use).toFixed(use > 0 && use < 0.0995 ? 1 : 0)} %`;
    byId("cache").textContent = share;
    draw("cache-picture", [history.map((one) => one.stats.cache.use)], 1, `Part of the cache in use: ${share}`);
    const found = stats.prefix.queries ? Math.round(100 * stats.prefix.hits / stats.prefix.queries) : 0;
    byId("cache-line").textContent = stats.cache.tokens
      ? `Of ${stats.cache.tokens.toLocaleString("en")} tokens in ${bytes(stats.cache.bytes)} of ${stats.cache.dtype}. ` +
        `${found} % of prompts' tokens were found in it.`
      : "One request at a time has it.";
    byId("engine-line").textContent =
      `${stats.running} running · cache ${share} · ${Math.round(rate).toLocaleString("en")} tokens/s`;
    if (byId("engine").open) showRequests(stats.requests);
  }

  async function ask() {
    try {
      const stats = await getJson("stats");
      onStats(stats);
      show(stats);
      if (failed) showProblem("");
      failed = false;
    } catch (error) {
      failed = true;
      const loads = error.status === 503;  // the message says what, and is new each time
      showProblem(loads ? `Not ready: ${error.message}` : `The engine's numbers are missing: ${error.message}`);
    }
    setTimeout(ask, document.hidden ? 5 * EVERY : EVERY);
  }

  byId("engine").open = matchMedia("(min-width: 62rem)").matches;
  ask();
}
