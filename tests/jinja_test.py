"""Chat templates against Python's jinja2, byte for byte.
Usage: jinja_test.py PATH_OF_JINJA_LINES [--conversations N] [--templates N] [unittest arguments], from the root of the
repository. STRETTO_TEST_SEED repeats a run."""

import json
import os
import pathlib
import random
import subprocess
import sys
import threading
import time
import unittest

import jinja_constructs
import python_environment

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEMPLATES = ROOT / "tests/data/templates"
SEED = int(os.environ.get("STRETTO_TEST_SEED") or random.randrange(1 << 32))
# STRETTO_SOAK: as ./check --long; with a seed alone as ./check.
COUNTS = ({"--conversations": 100000, "--templates": 6000} if os.environ.get("STRETTO_SOAK") else
          {"--conversations": 400, "--templates": 750} if os.environ.get("STRETTO_TEST_SEED") else
          {"--conversations": 800, "--templates": 1500})

try:
    import jinja_reference
except ImportError as error:
    jinja_reference, MISSING = None, str(error)


class Lines:
    """jinja_lines, asked a question at a time."""

    def __init__(self):
        self.process = subprocess.Popen([JINJA_LINES], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def render_all(self, templates, variables):
        line = json.dumps({"templates": templates, "variables": variables})
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def render(self, template, variables):
        return self.render_all([template], variables)[0]


# Where ours and jinja2 may differ: addresses in what is printed, generators (ours are lists made at once), numbers
# beyond 64 bits, formats that are not there, and slices of constants that have none, which jinja2 folds unseen.
UNLIKE = (" at 0x", "dict_keys(", "dict_items(", "dict_values(", "markup(")
OURS = ("is not supported", "leaves 64 bits", "cannot be printed", "has no slices")


class JinjaTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if jinja_reference is None:
            raise unittest.SkipTest(f"no jinja2 to compare with: {MISSING}")
        cls.lines = Lines()
        cls.env = jinja_reference.environment()
        cls.compiled = {}

    @classmethod
    def tearDownClass(cls):
        cls.lines.close()

    def same(self, template, variables, note, got=None):
        """Whether there was something to compare."""
        got = got or self.lines.render(template, variables)
        if template not in self.compiled:
            self.compiled = {**(self.compiled if len(self.compiled) < 50 else {}),
                             template: jinja_reference.compiled(self.env, template)}
        want, why = jinja_reference.render(self.compiled[template], variables)
        if want is not None and any(one in want.lower() for one in UNLIKE):
            return False
        if "error" in got and any(one in got["error"] for one in OURS):
            return False
        self.assertEqual(got.get("text"), want,
                         f"{note}\n{template}\n{json.dumps(variables)}\n{why or got.get('error')}")
        if want is not None:
            self.assertEqual("".join(text for text, _ in got["pieces"]), want)
        elif why.startswith("TemplateError: "):
            self.assertIn(why.removeprefix("TemplateError: ")[:200], got["error"])
        return want is not None

    def test_conversations_through_templates_of_the_families(self):
        templates = {path.name: path.read_text() for path in sorted(TEMPLATES.glob("*.jinja"))}
        good = dict.fromkeys(templates, 0)
        for number in range(COUNTS["--conversations"]):
            variables = jinja_reference.Maker(f"{SEED} {number}").conversation()
            answers = self.lines.render_all(list(templates.values()), variables)
            for (name, template), got in zip(templates.items(), answers):
                good[name] += self.same(template, variables, f"seed {SEED}, {name}, conversation {number}", got)
        print(f"seed {SEED}: {COUNTS['--conversations']} conversations, rendered: {good}", file=sys.stderr)
        for name, count in good.items():
            self.assertGreater(count, COUNTS["--conversations"] / 20, name)

    def test_constructs_of_public_templates(self):
        variables = jinja_constructs.VARIABLES
        for name, template in jinja_constructs.RENDERED.items():
            with self.subTest(name):
                want, why = jinja_reference.render(jinja_reference.compiled(self.env, template), variables)
                self.assertIsNotNone(want, why)
                got = self.lines.render(template, variables)
                self.assertEqual(got.get("text"), want, got.get("error"))
        for template, line in jinja_constructs.FAILING + jinja_constructs.REFUSED:
            with self.subTest(template):
                self.assertRegex(self.lines.render(template, variables).get("error", "no error"),
                                 f"^template: line {line}: ")
                if (template, line) in jinja_constructs.FAILING:
                    compiled = jinja_reference.compiled(self.env, template)
                    self.assertIsNone(jinja_reference.render(compiled, variables)[0])

    def test_templates_by_lot(self):
        good = 0
        for number in range(COUNTS["--templates"]):
            maker = jinja_reference.TemplateMaker(f"{SEED} {number}")
            template = maker.template()
            good += self.same(template, maker.variables(), f"seed {SEED}, template {number}")
        print(f"seed {SEED}: {good} of {COUNTS['--templates']} templates rendered", file=sys.stderr)
        self.assertGreater(good, COUNTS["--templates"] / 20)  # some 0.18 of them are

    def test_user_text_is_marked(self):
        """Whatever a template does with it, each character knows whether it came with the request."""
        template = ("<|im_start|>{{ m.content[2:]|trim|upper ~ '<|x|>' }}{{ m|tojson }}"
                    "{{ m.content.split('|')|join('/') }}")
        pieces = self.lines.render(template, {"m": {"content": "  <|im_end|>\n"}})["pieces"]
        self.assertEqual("".join(text for text, is_user in pieces if not is_user), '<|im_start|><|x|>{"": ""}//')
        self.assertIn(["<|IM_END|>", True], pieces)

    def test_lines_of_errors(self):
        for template, line in [("a\n{{ 1 + }}", 2), ("\n\n{% if x %}", 3), ("{{ 1 }}\n{{ x.y }}", 2),
                               ("\n{% nope %}", 2),
                               ("{% for a in [1] %}\n{{ raise_exception('no') }}{% endfor %}", 2),
                               ("\n{{ 'a' |nope }}", 2),
                               ("{#\n\n#}\n{{ 'x", 4), ("{%- set x = 1 -%}\n\n\n{{ x + 'a' }}", 4)]:
            self.assertRegex(self.lines.render(template, {})["error"], f"^template: line {line}: ", template)

    def test_case_of_every_letter(self):
        """Letters that are half of each, such as U+01C5, are neither; small letters that stand above the line are
        lower case though their category is another one."""
        letters = [chr(c) for c in range(0x20, 0x1f200) if chr(c).islower() or chr(c).isupper() or chr(c).istitle()]
        self.assertGreater(len(letters), 2500)
        template = ("{% for c in xs %}{{ c is lower }}{{ c is upper }}{{ ('a' ~ c) is lower }}{{ ('A' ~ c) is upper }}"
                    "\n{% endfor %}")
        for at in range(0, len(letters), 500):
            self.assertTrue(self.same(template, {"xs": letters[at:at + 500]}, f"letters from {at} on"))

    def test_limits(self):
        for template in ["{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
                         "{{ 'aaaaaaaaaa' * 1000000000 }}", "{{ 'ab' * 99999999 }}", "{{ 'a' * 67108865 }}",
                         "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
                         "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
                         "{% set n = namespace(x=[]) %}{% for i in range(9999) %}{% set n.x = [n.x] %}{% endfor %}",
                         "{% set n = namespace() %}{% set n.x = n %}{{ n }}", "{{ " + "(" * 9999 + ")" * 9999 + " }}",
                         "{{ " + "-" * 9999 + "1 }}", "{{ 1" + "+1" * 99999 + " }}", "{{ a" + "|upper" * 9999 + " }}",
                         "{% if x %}" * 9999, "{{ " + "[" * 9999, "{{ range(99999999) }}", "{{ 2 ** 99 }}",
                         "{{ 0 ** -1 }}", "{{ 0.0 ** -0.5 }}"]:
            self.assertIn("error", self.lines.render(template, {}), template[:80])

    def test_what_is_shared_costs_each_time(self):
        """A list that holds the one before twice is small, and endless for who goes over all of it. Texts that nearly
        hold each other, and many names. Whatever a template does with them, it ends."""
        begin = "{{% set n = namespace(x=(1,), d={{}}) %}}{{% for i in range({}) %}}{{% set n.x = {} %}}{{% endfor %}}"
        uses = ["n.x", "n.x|tojson", "n.x|tojson(indent=99)", "n.x|tojson(sort_keys=true)", "n.x == n.x", "n.x < n.x",
                "n.x >= n.x", "n.x != [n.x]", "n.x in [n.x]", "[n.x].index(n.x)", "[n.x].count(n.x)",
                "[n.x, n.x]|sort", "[n.x, n.x]|max", "[n.x, n.x]|unique|list|length", "n.x is eq n.x", "n.x is lower",
                "'a'|replace('a', n.x)", "n.x ~ ''", "n.x|string", "n.x|upper", "n.x|join", "[n.x]|join",
                "'%s' % [n.x]", "'%r' % [n.x]", "'{}'.format(n.x)", "n.x|attr(n.x)", "n.d[n.x]", "n.d.get(n.x)",
                "n.x in n.d", "{n.x: 1}", "dict([(n.x, 1)])", "{1: n.x}|dictsort", "[n.x]|map(n.x)",
                "[n.x]|select('eq', n.x)|list",
                "[n.x]|map(attribute=n.x)|list", "raise_exception(n.x)", "n.x|escape", "n.x|trim", "n.x|wordcount",
                "n.x|list|length", "n.x.x", "namespace(a=n.x)", "n.x|length", "[n.x]|sum(start=[])", "n.x|safe"]
        made = [begin.format(150, one) for one in ("[n.x, n.x]", "(n.x, n.x)", "{1: n.x, 2: n.x}", "[n.x, n.x]|select")]
        templates = [one + "{{ " + use + " }}" for one in made for use in uses]
        inner = ", ".join(f"a{i}=n.x" for i in range(9))
        templates += [begin.format(19, f"namespace({inner})") + "{{ n.x }}",
                      begin.format(19, f"namespace({inner})") + "{{ [n.x] ~ n.x }}"]
        texts = "{% set t = 'a' * 1000000 %}{% set h = 'a' * 500000 ~ 'b' %}{% set d = {} %}"
        for use in ["h in t", "t.find(h)", "t.rfind(h)", "t.count(h)", "t.split(h)|length", "t.rsplit(h)|length",
                    "t.replace(h, '')|length", "t.partition(h)|length", "t.strip(h[::-1])|length",
                    "('ab' * 500000).rsplit('b')|length", "('ab' * 500000).split('b')|length", "t.startswith(h)",
                    "[1]|map(attribute=('a.' * 500000), default={})|list", "[{}, {}]|sort(attribute='a,' * 500000)"]:
            templates.append(texts + "{{ " + use + " }}")
        for use in ["d[t]", "d.get(t)", "t in d", "t.isalpha()", "t is lower", "t == t ~ ''", "t.startswith(t)",
                    "[t, t]|max|length", "[t] == [t ~ '']", "t|attr('x' * 999)", "dict(d2)|length", "{t: 1}|length",
                    "namespace(d2)"]:
            templates.append(texts + "{% set d2 = {t: 1} %}{% for i in range(30000) %}{% if " + use +
                             " %}{% endif %}{% endfor %}")
        templates.append("".join(f"{{% set a{i} = 1 %}}" for i in range(100000)) + "{{ a99999 }}")
        slowest = 0
        for template in templates:
            begun = time.monotonic()
            watch = threading.Timer(100, self.lines.process.kill)
            watch.start()
            try:
                got = self.lines.render(template, {})
            except ValueError:
                self.fail(f"is killed after 100 s: {template[-200:]}")
            finally:
                watch.cancel()
            slowest = max(slowest, time.monotonic() - begun)
            self.assertTrue("error" in got or len(got["text"]) < 2_000_000, template[-200:])
        print(f"{len(templates)} templates, the slowest {slowest:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if not arguments:
        sys.exit(__doc__)
    JINJA_LINES = arguments.pop(0)
    python_environment.needs("jinja2", JINJA_LINES)
    for flag in COUNTS:
        if flag in arguments:
            at = arguments.index(flag)
            COUNTS[flag] = int(arguments[at + 1])
            del arguments[at:at + 2]
    unittest.main(argv=[sys.argv[0], *arguments])
