"""Constrained output against llguidance, jsonschema and re. Usage: grammar_test.py PATH_OF_GRAMMAR_LINES
[--schemas N] [--regexes N] [unittest arguments], from the root of the repository. STRETTO_TEST_SEED repeats a run."""

import itertools
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import unittest

import python_environment

if len(sys.argv) > 1:
    python_environment.needs("llguidance", sys.argv[1])

ROOT = pathlib.Path(__file__).resolve().parent.parent
SEED = int(os.environ.get("STRETTO_TEST_SEED") or random.randrange(1 << 32))
COUNTS = {"--schemas": 500, "--regexes": 200}
# A model's directory, the size of its vocabulary, the token that ends a text.
DEBIAN = (ROOT / "checkpoints/debian-llama-8m", 4096, 1)
TOKENIZERS = [DEBIAN]
for name, end in (("llama3", "<|eot_id|>"), ("qwen2", "<|im_end|>")):
    directory = ROOT / "stretto/model/tokenizer/testdata" / name
    tokens = json.loads((directory / "tokenizer.json").read_text())
    ids = [t["id"] for t in tokens["added_tokens"]] + list(tokens["model"]["vocab"].values())
    TOKENIZERS.append((directory, max(ids) + 1, next(t["id"] for t in tokens["added_tokens"] if t["content"] == end)))

# Where ours and llguidance's differ: escapes (ours write a character in one way where it counts, and never half a
# pair), DEL in strings (valid JSON, ours), fractions of minus nought with bounds, exponents of three digits (beyond
# what readers of JSON can hold), the byte order mark (space in ECMA 262).
UNLIKE = re.compile(rb"\\|\x7f|\xef\xbb|-0|[0-9][eE][-+]?[0-9]{3}")

try:
    import grammar_reference
except ImportError as error:
    grammar_reference, MISSING = None, str(error)


class Lines:
    """grammar_lines, asked a question at a time."""

    def __init__(self, directory, size, _end=None):
        self.process = subprocess.Popen([GRAMMAR_LINES, directory, str(size)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def ask(self, **question):
        self.process.stdin.write(json.dumps(question).encode() + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def make(self, **grammar):
        answer = self.ask(**grammar)
        if "error" in answer:
            raise ValueError(answer["error"])

    def matches(self, text):
        return self.ask(bytes=list(text.encode()))["ends"]


def ends_short_of_a_bound(grammar, text):
    """Whether it ends with a fraction that begins as a bound's does, as 8.1 of up to 8.17. llguidance wants more digits
    there, though the number is within."""
    number = re.search(rb"-?[0-9]+\.[0-9]+$", text)
    bounds = re.findall(r'imum": (-?[0-9]+\.[0-9]+)', str(grammar))
    return number is not None and any(b != number[0].decode() and b.startswith(number[0].decode()) for b in bounds)


class GrammarCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if grammar_reference is None:
            raise unittest.SkipTest(f"nothing to compare with: {MISSING}")

    def setUp(self):
        self.random = random.Random(f"{SEED} {self.id()}")
        self.enterContext(self.subTest(STRETTO_TEST_SEED=SEED))


class SchemaTest(GrammarCase):
    def test_every_answer_is_valid(self):
        """Random walks through random schemas, of which those that end are valid."""
        ended = 0
        with Lines(*DEBIAN) as lines:
            for _ in range(COUNTS["--schemas"]):
                schema = grammar_reference.document(self.random, grammar_reference.OURS)
                lines.make(schema=schema, compact=self.random.random() < 0.3)
                for _ in range(3):
                    walk = lines.ask(walk=self.random.randrange(1 << 60), most=150)
                    with self.subTest(schema=json.dumps(schema, ensure_ascii=False), walk=walk):
                        self.assertNotIn("error", walk)
                        if walk["ended"]:
                            ended += 1
                            grammar_reference.check(schema, walk["text"])
        self.assertGreater(ended, COUNTS["--schemas"])

    def test_masks_are_those_of_llguidance(self):
        for tokenizer in TOKENIZERS:
            reference = grammar_reference.Reference(*tokenizer)
            with Lines(*tokenizer) as lines:
                for _ in range(COUNTS["--schemas"] // len(TOKENIZERS)):
                    schema = grammar_reference.document(self.random)
                    lines.make(schema=schema, compact=True)
                    matcher = reference.schema(schema)
                    self.compare(lines, reference, matcher, json.dumps(schema, ensure_ascii=False), schema)

    def compare(self, lines, reference, matcher, grammar, schema=None):
        """Along one random answer. Where one token is forced llguidance names only that; it is asked about the others
        one by one. It takes 3.1 for no end of a number below 3.18: what is valid may end. Nor does it take 3.180 where
        3.18 is the most: a nought behind a fraction changes nothing."""
        tokens = []
        for _ in range(30):
            text = reference.bytes(tokens)
            ours = set(lines.ask(tokens=tokens)["allowed"])
            theirs = reference.allowed(matcher)
            is_nought = re.search(rb"-0[0-9.]*$", text)
            unlike = lambda t: is_nought or t in reference.added or UNLIKE.search(text[-8:] + reference.bytes([t]))
            more = {t for t in ours - theirs if matcher.validate_tokens([t]) != 1}
            if reference.end in more and schema is not None and grammar_reference.is_valid(schema, text):
                more.remove(reference.end)
            if re.search(rb"\.[0-9]+$", text):
                more = {t for t in more if reference.bytes([t]).strip(b"0") or t == reference.end}
            if ends_short_of_a_bound(grammar, text):
                more = {t for t in more if reference.bytes([t])[:1].isdigit()}
            with self.subTest(grammar=grammar, text=text):
                self.assertEqual([reference.bytes([t]) for t in more if not unlike(t)], [], "allowed by us alone")
                self.assertEqual([reference.bytes([t]) for t in theirs - ours if not unlike(t)], [], "by them alone")
            either = sorted(ours - more - reference.added | ours & {reference.end})
            if not either:
                break
            token = self.random.choice(either)
            if token == reference.end:
                break
            tokens.append(token)
            matcher.consume_token(token)


class RegexTest(GrammarCase):
    def test_texts_are_those_of_re(self):
        """All texts of up to five letters."""
        texts = ["".join(t) for size in range(6) for t in itertools.product("abc", repeat=size)]
        reference = grammar_reference.Reference(*DEBIAN)
        with Lines(*DEBIAN) as lines:
            for _ in range(COUNTS["--regexes"]):
                regex = grammar_reference.regex(self.random)
                lines.make(regex=regex)
                compiled = re.compile(regex)
                for text in self.random.sample(texts, 100):
                    with self.subTest(regex=regex, text=text):
                        self.assertEqual(lines.matches(text), compiled.fullmatch(text) is not None)
                # Of what both take for a dot and a word.
                alike = regex.replace(".", "[abc]").replace("\\w", "[a-c]").replace("[^a]", "[bc]")
                lines.make(regex=alike)
                SchemaTest.compare(self, lines, reference, reference.regex(alike), alike)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    GRAMMAR_LINES = str(pathlib.Path(arguments.pop(0)).resolve())
    for flag in COUNTS:
        if flag in arguments:
            at = arguments.index(flag)
            COUNTS[flag] = int(arguments[at + 1])
            del arguments[at:at + 2]
    unittest.main(argv=sys.argv[:1] + arguments)
