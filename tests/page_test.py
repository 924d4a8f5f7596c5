"""The page at `/`, as people use it: in a headless Chromium, by mouse, by keyboard and by what a screen reader is told.
Usage: page_test.py PATH_OF_STRETTO [unittest arguments], from the root of the repository. Pictures are kept in
build/page. If this fails, who opens the server's address in a browser meets a page that does not do what it shows."""

import concurrent.futures
import math
import pathlib
import re
import sys
import time
import unittest

import python_environment

if len(sys.argv) > 1:
    python_environment.needs("selenium", sys.argv[1])

import cli_case
from browser_case import FILES, Browser, Keys, ScriptedServer, needs_browser
from cli_case import ROOT
from serve_case import Server, ServeCase

MODEL_8M = ROOT / "checkpoints/debian-llama-8m"
PROMPT = "libopenmpi-dev:"
KEY = "open sesame"
EVIL = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>&lt;b&gt;"

# How much lighter one colour of the page is than another, as WCAG 2 counts it, of all texts that are in view.
CONTRASTS = """
const channel = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
const ground = (e) => {
  for (; e; e = e.parentElement) {
    const c = numbers(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] === 1) return c;
  }
  return [255, 255, 255];
};
const found = [];
for (const e of document.querySelectorAll("body *")) {
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  if (!own && !e.placeholder || !e.checkVisibility() || e.disabled || e.clientWidth <= 1) continue;
  const style = getComputedStyle(e, own ? undefined : "::placeholder");
  const [a, b] = [light(numbers(style.color)), light(ground(e))].sort((x, y) => y - x);
  found.push([e.tagName + "#" + e.id + "." + e.className, (a + 0.05) / (b + 0.05)]);
}
return found;
"""


class FilesTest(ServeCase):
    """Without a browser."""

    def test_headers_and_files(self):
        with Server("--api-key", KEY) as server:
            others = {"index.html", "openapi.json"}
            for path in ["/", *(f"/page/{file.name}" for file in FILES.iterdir() if file.name not in others)]:
                status, headers, data = server.call("GET", path)
                self.assertEqual(status, 200, path)
                self.assertEqual(data, (FILES / pathlib.Path(path).name if path != "/" else FILES / "index.html")
                                 .read_bytes())
                policy = headers["Content-Security-Policy"]
                self.assertIn("default-src 'none'", policy)
                self.assertNotRegex(policy, r"unsafe|\*|https?:|data:")
                self.assertEqual(headers["X-Content-Type-Options"], "nosniff")
                self.assertNotRegex(data.decode().replace("http://www.w3.org/2000/svg", ""), r"(https?:)?//\w", path)
            self.assertEqual(server.call("HEAD", "/")[0], 200)
            self.assertEqual([server.call("POST", "/")[0], server.call("GET", "/page/none.js")[0],
                              server.call("GET", "/page/../server.cc")[0], server.call("GET", "/stats")[0]],
                             [405, 404, 404, 401])
            self.assertNotIn('"/page/', server.said())

    def test_text_of_models_is_never_markup(self):
        for file in FILES.glob("*.js"):
            self.assertNotRegex(file.read_text(), r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(")

    def test_stats(self):
        with Server("--kv-memory", "4MiB") as server:
            idle = server.call("GET", "/stats")
            self.assertEqual(idle[1]["Cache-Control"], "no-store")
            with concurrent.futures.ThreadPoolExecutor() as pool:
                asked = pool.submit(server.complete, prompt=PROMPT, max_tokens=400, n=2, ignore_eos=True)
                rows = []
                server.until(lambda: rows.extend(server.stats()["requests"]) or asked.done(), "an answer")
            seen = [row for row in rows if row["state"] == "running"]
            self.assertTrue(seen)
            for row in seen:
                self.assertEqual(sorted(row), ["max_tokens", "prompt_tokens", "seconds", "state", "tokens"])
                self.assertEqual(row["max_tokens"], 400)
                self.assertLessEqual(row["tokens"], 400)
            usage = asked.result()["usage"]
            self.assertEqual({row["prompt_tokens"] for row in seen}, {usage["prompt_tokens"]})
            server.until(lambda: not server.stats()["running"], "the end")
            after = server.stats()
            self.assertEqual((after["prompt_tokens"], after["generated_tokens"], after["requests"]),
                             (usage["prompt_tokens"], usage["completion_tokens"], []))
            self.assertGreater(after["cache"]["tokens"], 0)


@needs_browser
class PageTest(ServeCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server("--dtype", "float32"))
        cls.browser = cls.enterClassContext(Browser())

    def setUp(self):
        super().setUp()
        self.browser.look()

    def open(self, server=None, tab=""):
        url = server.url if isinstance(server, ScriptedServer) else f"http://127.0.0.1:{(server or self.server).port}/"
        self.browser.fresh(url + tab)
        self.browser.until(lambda: self.browser.text("#model") or self.browser.all("dialog[open]"), "the page's start")

    def done(self, stop):
        self.browser.until(lambda: not self.browser.one(stop).is_enabled(), "the end of an answer")

    def chat(self, text, settings=()):
        for field, value in settings:
            self.browser.run("document.querySelector(arguments[0]).value = arguments[1]", field, value)
        self.browser.one("#chat-text").send_keys(text, Keys.ENTER)

    def test_chat(self):
        self.open()
        greedy = {"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": 20}
        self.chat(PROMPT, [("#chat-temperature", "0"), ("#chat-tokens", "20")])
        self.browser.until(lambda: self.browser.all(".message.assistant"), "an answer")
        self.done("#chat-stop")
        want = self.server.post("/v1/chat/completions", greedy)[1]["choices"][0]["message"]["content"]
        self.assertEqual(self.browser.text(".message.assistant .body"), want.lstrip())
        self.assertIn(want.strip(), self.browser.text("#said"))
        # The next question has what was said before.
        self.chat("and then:")
        self.browser.until(lambda: len(self.browser.all(".message.assistant")) == 2, "a second answer")
        self.done("#chat-stop")
        more = [*greedy["messages"], {"role": "assistant", "content": want}, {"role": "user", "content": "and then:"}]
        want = self.server.post("/v1/chat/completions", {**greedy, "messages": more})[1]
        self.assertEqual(self.browser.all(".message.assistant .body")[1].text.strip(),
                         want["choices"][0]["message"]["content"].strip())
        self.browser.one("#chat-new").click()
        self.assertEqual(self.browser.all(".message"), [])
        self.assertEqual(self.browser.complaints(), [])

    def test_what_a_model_could_write(self):
        def answers(path, body):
            def say(finish=None, **delta):
                return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

            last = body["messages"][-1]["content"]
            yield say(role="assistant", content="")
            if last == "evil":
                yield say(reasoning=EVIL)
                yield from (say(content=c) for c in EVIL)
                yield say(tool_calls=[{"index": 0, "id": "1", "function": {"name": "f", "arguments": ""}}])
                yield from (say(tool_calls=[{"index": 0, "function": {"arguments": c}}]) for c in '{"a": "<b>"}')
                yield say("tool_calls")
            elif last == "code":
                yield from (say(content=c) for c in "see\n```python\n1 < 2\n```\nso")
                yield say("stop")
            elif last == "fails":
                yield say(content="Half an")
                yield {"error": {"message": "the engine has died", "code": 503}}
            elif last == "is cut":
                yield None
            else:
                while True:
                    time.sleep(0.01)
                    yield say(content="word ")

        _, headers, _ = self.server.call("GET", "/")
        policy = {"Content-Security-Policy": headers["Content-Security-Policy"]}
        with ScriptedServer(answers, policy) as server:
            self.open(server)
            self.chat("evil")
            self.browser.until(lambda: self.browser.all(".call"), "the call")
            self.assertEqual(self.browser.text(".message.assistant .body"), EVIL)
            self.assertEqual(self.browser.text(".message.assistant details .text"), EVIL)
            self.assertEqual(self.browser.text(".call"), 'f({"a": "<b>"})')
            self.assertEqual(self.browser.all("#log img, #log script, #log b"), [])
            self.assertEqual(self.browser.driver.title, "scripted · stretto")

            self.chat("code")
            self.browser.until(lambda: self.browser.all("pre"), "code")
            self.done("#chat-stop")
            self.assertEqual(self.browser.text("pre"), "1 < 2\n")

            self.chat("fails")
            self.browser.until(lambda: "has died" in self.browser.text("#problem"), "what went wrong")
            self.assertEqual(self.browser.all(".message.assistant .body")[2].text, "Half an")
            self.chat("is cut")
            self.browser.until(lambda: "cut off" in self.browser.text("#problem"), "what went wrong")
            self.assertEqual(self.browser.one("#chat-text").get_attribute("value"), "is cut")

            for stop in (lambda: self.browser.one("#chat-stop").click(), lambda: self.browser.keys(Keys.ESCAPE)):
                server.closed.clear()
                self.browser.run("document.querySelector('#chat-text').value = ''")
                count = len(self.browser.all(".message.assistant"))
                self.chat("endless")
                self.browser.until(lambda: len(self.browser.all(".message.assistant")) > count and
                                   "word word" in self.browser.all(".message.assistant")[-1].text, "words")
                stop()
                self.done("#chat-stop")
                self.assertTrue(server.closed.wait(60))  # and a server ends what nobody reads
                self.assertIn("Stopped.", self.browser.all(".message.assistant")[-1].text)
            self.assertEqual(self.browser.complaints(), [])

    def complete(self, prompt, tokens=12):
        self.browser.one("#text-prompt").clear()
        self.browser.one("#text-prompt").send_keys(prompt)
        self.browser.run("document.querySelector('#text-temperature').value = 0;"
                         "document.querySelector('#text-tokens').value = arguments[0]", str(tokens))
        self.browser.one("#text-form .main").click()
        self.done("#text-stop")
        return self.server.complete(prompt=prompt, max_tokens=tokens, temperature=0, logprobs=5)["choices"][0]

    def alternatives(self):
        """Name and percent of each row."""
        return [(row.find_element("css selector", ".name").text, row.find_element("css selector", ".percent").text)
                for row in self.browser.all("#alternatives button")]

    def test_completions(self):
        self.open(tab="#completions")
        want = self.complete(PROMPT)
        tokens = want["logprobs"]["tokens"]
        shown = self.browser.all("#answer .token")
        self.assertEqual([self.browser.run("return arguments[0].textContent", one) for one in shown], tokens)

        def rows(at):
            top = sorted(want["logprobs"]["top_logprobs"][at].items(), key=lambda item: -item[1])
            return [(token.replace(" ", "␣").replace("\n", "⏎"),
                     f"{100 * math.exp(p):.{0 if p > math.log(.0995) else 1}f} %") for token, p in top]

        # By mouse.
        self.browser.run("arguments[0].scrollIntoView()", shown[3])
        self.browser.hover(shown[3])
        self.browser.until(lambda: self.browser.all("#alternatives:not([hidden])"), "alternatives")
        self.assertEqual(self.alternatives(), rows(3))
        self.browser.hover(self.browser.one("h1"))
        self.browser.until(lambda: not self.browser.all("#alternatives:not([hidden])"), "their end")
        # By keyboard: one stop of the tab key, then arrows; Enter opens the list, Escape closes it.
        self.browser.run("document.querySelector('#text-top').focus()")
        self.browser.keys(Keys.TAB)
        self.assertEqual(self.browser.focus(), tokens[0])
        self.browser.keys(Keys.ARROW_RIGHT)
        self.browser.keys(Keys.ARROW_RIGHT)
        self.assertEqual(self.browser.focus(), tokens[2])
        self.assertEqual(self.alternatives(), rows(2))
        label = self.browser.driver.switch_to.active_element.accessible_name
        for _, percent in rows(2):
            self.assertIn(percent, label)
        self.browser.keys(Keys.ENTER)
        self.assertEqual(self.browser.run("return document.activeElement.closest('#alternatives')?.role"), "dialog")
        self.browser.keys(Keys.ESCAPE)
        self.assertEqual(self.browser.focus(), tokens[2])
        # Another choice is gone on from.
        self.browser.keys(Keys.ENTER)
        others = list(dict(sorted(want["logprobs"]["top_logprobs"][2].items(), key=lambda item: -item[1])))
        other = next(token for token in others if token != tokens[2])
        for _ in range(others.index(other)):
            self.browser.keys(Keys.ARROW_DOWN)
        self.browser.keys(Keys.ENTER)
        begin = PROMPT + "".join(tokens[:2]) + other
        self.browser.until(lambda: self.browser.text("#answer .prompt") == begin, "the new beginning")
        self.done("#text-stop")
        want = self.server.complete(prompt=begin, max_tokens=12, temperature=0)["choices"][0]["text"]
        self.assertEqual("".join(self.browser.run(
            "return [...document.querySelectorAll('#answer .token')].map((e) => e.textContent)")), want)
        # A prompt is text, too.
        self.complete(EVIL, tokens=3)
        self.assertEqual(self.browser.text("#answer .prompt"), EVIL)
        self.assertEqual(self.browser.all("#answer img"), [])
        self.assertEqual(self.browser.complaints(), [])

    def test_without_a_template(self):
        model = self.tmp / "model"
        model.mkdir()
        for file in pathlib.Path(cli_case.MODEL).iterdir():
            if "template" not in file.name:
                (model / file.name).symlink_to(file)
        with Server(model=model) as server:
            self.open(server)
            self.browser.until(lambda: self.browser.one("#completions").is_displayed(), "completions")
            self.complete(PROMPT, tokens=2)
            self.browser.one("#tab-chat").click()
            self.assertIn("template", self.browser.one("#no-chat").text)
            self.assertFalse(self.browser.one("#chat-text").is_enabled())

    def test_api_key(self):
        with Server("--api-key", KEY) as server:
            self.open(server)
            self.assertEqual(self.browser.focus(), "key-text")
            self.assertFalse(self.browser.one("#key-wrong").is_displayed())
            self.browser.keys(Keys.ESCAPE)
            self.browser.until(lambda: self.browser.all("dialog[open]"), "the question again")
            self.browser.one("#key-text").click()
            self.browser.keys("a guess", Keys.ENTER)
            self.browser.until(lambda: self.browser.one("#key-wrong").is_displayed(), "that it is wrong")
            self.browser.keys(KEY, Keys.ENTER)
            self.browser.until(lambda: self.browser.text("#model"), "the model")
            self.chat(PROMPT, [("#chat-tokens", "4")])
            self.browser.until(lambda: self.browser.all(".message.assistant .body"), "an answer")
            self.done("#chat-stop")
            self.assertEqual(self.browser.text("#problem"), "")
            self.browser.driver.refresh()
            self.browser.until(lambda: self.browser.text("#model"), "the model, unasked")
            self.assertEqual(self.browser.run("return [sessionStorage.length, localStorage.length, document.cookie]"),
                             [1, 0, ""])

    def test_it_asks_nobody_else(self):
        self.open()
        self.complete_tab()
        asked = [event["params"]["request"]["url"] for event in self.browser.log()
                 if event["method"] == "Network.requestWillBeSent"]
        self.assertGreater(len(asked), 5)
        for url in asked:
            self.assertRegex(url, f"^(about:|http://127.0.0.1:{self.server.port}/)")
        # What is not of this server is refused by the policy.
        refused = self.browser.driver.execute_async_script(
            "const done = arguments[0];"
            "fetch('http://127.0.0.1:1/').then(() => done('taken'), (e) => done(String(e)))")
        self.assertIn("TypeError", refused)
        self.assertTrue(any("Content Security Policy" in one for one in self.browser.complaints()))

    def complete_tab(self):
        self.browser.one("#tab-completions").click()
        self.complete(PROMPT, tokens=3)

    def test_tabs_by_keyboard(self):
        self.open()
        order = []
        for _ in range(8):
            self.browser.keys(Keys.TAB)
            order.append(self.browser.focus())
        self.assertEqual(order, ["To the conversation", "tab-chat", "log", "chat-text", "Send", "chat-new", "Settings",
                                 self.browser.text("#engine summary")])
        self.browser.run("document.querySelector('#tab-chat').focus()")
        self.browser.keys(Keys.ARROW_RIGHT)
        self.assertEqual(self.browser.focus(), "tab-completions")
        self.assertTrue(self.browser.one("#completions").is_displayed())
        self.assertFalse(self.browser.one("#chat").is_displayed())

    def test_what_a_screen_reader_is_told(self):
        self.open()
        self.chat(PROMPT, [("#chat-tokens", "4")])
        self.done("#chat-stop")
        for tab in ("#tab-chat", "#tab-completions"):
            self.browser.one(tab).click()
            nodes = self.browser.command("Accessibility.getFullAXTree")["nodes"]
            told = [(node["role"]["value"], (node.get("name") or {}).get("value", "")) for node in nodes
                    if not node["ignored"]]
            for role, name in told:
                if role in ("button", "textbox", "spinbutton", "tab", "tabpanel", "img", "image", "log", "dialog",
                            "complementary", "DisclosureTriangle", "list"):
                    self.assertTrue(name or role in ("image", "list"), (role, told))
            roles = [role for role, _ in told]
            for role in ("banner", "main", "complementary", "tablist", "heading", "status"):
                self.assertIn(role, roles)
        pictures = [element.accessible_name for element in self.browser.all("svg")]
        self.assertTrue(all(re.search(r"\d", name) for name in pictures), pictures)

    def test_looks_and_contrasts(self):
        with Server("--dtype", "float32", model=MODEL_8M) as server, concurrent.futures.ThreadPoolExecutor(6) as pool:
            self.open(server)
            end = time.monotonic() + 12
            background = [pool.submit(self.keep_asking, server, end, 40 + 60 * i) for i in range(5)]
            self.chat("gcc-doc:", [("#chat-temperature", "0"), ("#chat-tokens", "90")])
            self.browser.until(lambda: self.browser.all(".message.assistant .body"), "an answer")
            self.done("#chat-stop")
            self.chat("libopenmpi-dev:")
            self.browser.until(lambda: len(self.browser.all(".message.assistant .body")) == 2, "an answer")
            self.done("#chat-stop")
            self.browser.run("document.querySelector('#text-prompt').value = 'python3-numpy:';"
                             "document.querySelector('#text-temperature').value = 0.5;"
                             "document.querySelector('#text-form').requestSubmit()")
            self.done("#text-stop")
            self.browser.until(lambda: time.monotonic() > end - 3, "pictures with something on them")
            self.looks("chat")
            self.browser.one("#tab-completions").click()
            token = self.browser.all("#answer .token")[3]
            self.browser.run("arguments[0].focus()", token)
            self.looks("completions")
            concurrent.futures.wait(background)

    @staticmethod
    def keep_asking(server, end, tokens):
        while time.monotonic() < end:
            server.complete(prompt=PROMPT, max_tokens=tokens, ignore_eos=True)

    def looks(self, name):
        for scheme in ("light", "dark"):
            for what, width, height in (("wide", 1280, 800), ("narrow", 390, 844)):
                self.browser.look(width, height, scheme)
                for shown in self.browser.all("#alternatives:not([hidden])"):
                    def is_in_place(shown=shown, width=width):  # some frames after the window's new size
                        at, token = shown.rect, self.browser.one(".token[aria-expanded=true]").rect
                        is_whole = 0 <= at["x"] and at["x"] + at["width"] <= width
                        return is_whole and abs(at["y"] - token["y"]) < 300

                    self.browser.until(is_in_place, "its place")
                contrasts = self.browser.run(CONTRASTS)
                self.assertGreater(len(contrasts), 15)
                for where, contrast in contrasts:
                    self.assertGreaterEqual(contrast, 4.5, (scheme, where))
                self.assertLessEqual(self.browser.run("return document.documentElement.scrollWidth"), width)
                self.browser.picture(f"{name}-{what}-{scheme}")


if __name__ == "__main__":
    cli_case.main(__doc__)
