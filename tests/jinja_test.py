"""Chat templates against Python's jinja2, byte for byte.
Usage: jinja_test.py PATH_OF_JINJA_LINES [--conversations N] [--templates N] [unittest arguments], from the root of the
repository. STRETTO_TEST_SEED repeats a run."""

import json
import os
import pathlib
import random
import subprocess
import sys
import unittest

import python_environment

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEMPLATES = ROOT / "tests/data/templates"
SEED = int(os.environ.get("STRETTO_TEST_SEED") or random.randrange(1 << 32))
# STRETTO_SOAK: as ./check --long.
COUNTS = {"--conversations": 100000 if os.environ.get("STRETTO_SOAK") else 3000, "--templates": 6000}

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

    def test_limits(self):
        for template in ["{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
                         "{{ 'aaaaaaaaaa' * 1000000000 }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
                         "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
                         "{% set n = namespace(x=[]) %}{% for i in range(9999) %}{% set n.x = [n.x] %}{% endfor %}",
                         "{% set n = namespace() %}{% set n.x = n %}{{ n }}", "{{ " + "(" * 9999 + ")" * 9999 + " }}",
                         "{{ " + "-" * 9999 + "1 }}", "{{ 1" + "+1" * 99999 + " }}", "{{ a" + "|upper" * 9999 + " }}",
                         "{% if x %}" * 9999, "{{ " + "[" * 9999, "{{ range(99999999) }}", "{{ 2 ** 99 }}"]:
            self.assertIn("error", self.lines.render(template, {}), template[:80])


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
