"""jinja2 as transformers sets it up for chat templates, and random things to render."""

import json
import random
import warnings

import jinja2
import jinja2.ext
import jinja2.sandbox


warnings.filterwarnings("ignore", category=SyntaxWarning)  # of what templates by lot compile to


class Generation(jinja2.ext.Extension):
    """{% generation %}: what it holds is printed."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_print"), [], [], body).set_lineno(line)

    def _print(self, caller):
        return caller()


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: __import__("datetime").datetime.now().strftime(format)
    return env


def compiled(env, template):
    """A template, or the error that it is."""
    try:
        return env.from_string(template)
    except Exception as error:
        return error


def render(template, variables):
    """The text, or None and why there is none."""
    try:
        if isinstance(template, Exception):
            raise template
        return template.render(**variables), ""
    except Exception as error:  # whatever Python throws is an error of the template
        return None, f"{type(error).__name__}: {error}"


WORDS = ["hello", "<|im_end|>", "<|eot_id|>", "[INST]", "</think>", "<think>", "a", "Zürich", "日本", "🙂", "\n", "  ",
         "\t", "{{ x }}", "{% if %}", "'", '"', "\\", "<b>", "&", "\u00a0", "é", "x" * 30, "1", "\r\n", "\u2028",
         "\x00", "ß", "ǅ", "<tool_response>", "</tool_response>"]


class Maker:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def text(self, most=6):
        return "".join(self.random.choice(WORDS) + self.random.choice(["", " "])
                       for _ in range(self.random.randrange(most)))

    def value(self, depth=2):
        r = self.random.randrange(9 if depth else 6)
        if r == 0:
            return self.random.choice([None, True, False])
        if r == 1:
            return self.random.randrange(-5, 100)
        if r == 2:
            return self.random.choice([0.5, 1.0, -2.25, 1e20, 1e-7, 123456789.125, 0.1])
        if r <= 5:
            return self.text(3)
        if r == 6:
            return [self.value(depth - 1) for _ in range(self.random.randrange(4))]
        return {self.random.choice(["a", "b", "type", "items", "name", "é", "keys"]): self.value(depth - 1)
                for _ in range(self.random.randrange(4))}

    def schema(self, depth=2):
        kind = self.random.choice(["string", "number", "integer", "boolean", "array", "object", ["string", "null"]])
        out = {"type": kind}
        if self.random.random() < 0.5:
            out["description"] = self.text()
        if kind == "array" and depth:
            out["items"] = self.schema(depth - 1)
        if kind == "object" and depth:
            out["properties"] = {n: self.schema(depth - 1) for n in self.random.sample(["x", "y", "city", "items"], 2)}
        if self.random.random() < 0.2:
            out["maximum"] = self.random.choice([3, 2.5, 18446744073709551616])
        return out

    def tool(self):
        function = {"name": self.random.choice(["get_weather", "f", "search"]), "description": self.text(),
                    "parameters": {"type": "object", "properties": {
                        n: self.schema()
                        for n in self.random.sample(["x", "y", "city", "Unit"], self.random.randrange(4))},
                                   "required": ["x"]}}
        if self.random.random() < 0.3:
            function["return"] = self.schema()
        return {"type": "function", "function": function}

    def message(self, role):
        out = {"role": role, "content": self.text()}
        r = self.random.random()
        if role == "assistant" and r < 0.3:
            arguments = {k: self.value(1) if self.random.random() < .5 else self.text(3) for k in ["x", "city"]}
            out["tool_calls"] = [
                {"id": self.random.choice(["abcdefghi", "call_1"]), "type": "function",
                 "function": {"name": "f", "arguments": (arguments if self.random.random() < .8
                                                         else json.dumps(arguments))}}
                for _ in range(self.random.choice([1, 1, 2]))]
            if r < 0.15:
                out["content"] = None
        elif role == "assistant" and r < 0.5:
            out["content"] = f"<think>\n{self.text()}\n</think>\n\n{self.text()}"
        elif role == "assistant" and r < 0.6:
            out["reasoning_content"] = self.text()
        elif role == "user" and r < 0.1:
            out["content"] = [{"type": "text", "text": self.text()}, {"type": "image"}]
        elif role == "tool":
            out["tool_call_id"] = self.random.choice(["abcdefghi", "x"])
        return out

    def conversation(self):
        """Variables for a chat template."""
        messages = []
        if self.random.random() < 0.4:
            messages.append(self.message("system"))
        for _ in range(self.random.randrange(5)):
            messages.append(self.message("user"))
            if self.random.random() < 0.85:
                messages.append(self.message("assistant"))
            while self.random.random() < 0.2:
                messages.append(self.message("tool"))
        if self.random.random() < 0.05:
            self.random.shuffle(messages)
        out = {"messages": messages, "bos_token": "<s>", "eos_token": "</s>",
               "add_generation_prompt": self.random.random() < 0.7}
        if self.random.random() < 0.4:
            out["tools"] = self.random.choice([None, [self.tool() for _ in range(self.random.randrange(1, 3))]])
        for name, choices in {"enable_thinking": [True, False], "tools_in_user_message": [True, False],
                              "date_string": ["1 Jan 2026"], "builtin_tools": [["f", "code_interpreter"]]}.items():
            if self.random.random() < 0.2:
                out[name] = self.random.choice(choices)
        return out


NAMES = ["a", "b", "n", "t", "xs", "d", "m", "missing", "s", "loop", "ns", "block", "v", "x"]
TESTS = ["defined", "none", "string", "mapping", "iterable", "sequence", "number", "boolean", "true", "false",
         "integer", "float", "undefined", "odd", "even", "lower", "upper", "eq(1)", "in(xs)", "divisibleby(2)",
         "equalto('a')", "ne 1", "gt 2", "sameas(none)"]
FILTERS = ["length", "trim", "upper", "lower", "tojson", "string", "list", "first", "last", "join", "join(', ')",
           "default('x')", "default('x', true)", "int", "float", "abs", "capitalize", "title", "replace('a', 'bc')",
           "sort", "unique|list", "reverse|list", "items|list", "dictsort", "tojson(indent=2)", "map('upper')|list",
           "select('string')|list", "reject('none')|list", "selectattr('role', 'equalto', 'user')|list", "indent",
           "indent(2, true)", "map(attribute='role')|list", "tojson(sort_keys=true)", "wordcount", "count", "sum",
           "min", "max", "safe", "e", "round", "round(1)", "sort(reverse=true)", "sort(attribute='role')", "trim('a ')",
           "map(attribute='x', default='q')|join('-')", "rejectattr('content')|list|length", "float|string",
           "tojson(separators=(',', ':'))", "tojson(ensure_ascii=true)", "attr('upper')|string|length is odd"]
METHODS = [".strip()", ".split()", ".split('a')", ".upper()", ".items()|list", ".get('a')", ".get('zz', 1)",
           ".keys()|list", ".startswith('h')", ".endswith(('o', ' '))", ".lstrip('h')", ".rstrip()",
           ".replace('l', 'L', 1)", ".a", ".role",
           "['a']", "[0]", "[-1]", "[1:]", "[::-1]", "[:2]", "[-3:-1]", "['role']", ".find('l')", ".title()",
           ".splitlines()",
           ".values()|list", ".count('l')", ".rsplit(' ', 1)", ".partition('l')", ".missing", ".index",
           ".lower()", "[5]",
           ".isdigit()", ".capitalize()", ".append(1)", ".removeprefix('he')", ".first", ".last", ".index0", ".x"]


class TemplateMaker(Maker):
    """Templates of the subset, by lot. Many fail, which must then be so here and there."""

    # No request's variable is assigned: jinja2 hides it from loops and macros further up, ours from there on.
    def variables(self):
        return {"a": self.value(), "b": self.value(), "n": self.random.randrange(-3, 9), "t": self.text(),
                "xs": [self.value(1) for _ in range(self.random.randrange(4))],
                "d": {"a": self.value(1), "items": [1], "x": self.text(2)}, "s": "hello World",
                "m": [self.message(self.random.choice(["user", "assistant"])) for _ in range(2)]}

    def literal(self):
        return self.random.choice(["1", "0", "-2", "2.5", "'a'", '"q\\n"', "true", "none", "[1, 'a']",
        "{'a': 1}", "(1, 2)",
                                   "[]", "''", "False", "'a' 'b'", "1e3", "0x1f", "[[1], 2]", "()"])

    def expr(self, depth=3):
        r = self.random.random()
        if depth == 0 or r < 0.25:
            return self.random.choice(NAMES) if self.random.random() < 0.7 else self.literal()
        one, two = self.expr(depth - 1), self.expr(depth - 1)
        if r < 0.4:
            return f"{one}|{self.random.choice(FILTERS)}"
        if r < 0.58:
            return f"{one}{self.random.choice(METHODS)}"
        if r < 0.68:
            return f"({one} {self.random.choice(['+', '~', '*', '-', '/', '%', '//', '~', '+'])} {two})"
        if r < 0.76:
            return f"({one} {self.random.choice(['==', '!=', '<', '>', '<=', '>=', 'in', 'not in'])} {two})"
        if r < 0.82:
            return f"({one} {self.random.choice(['and', 'or'])} {two})"
        if r < 0.86:
            return f"(not {one})"
        if r < 0.92:
            return f"({one} is {self.random.choice(['', 'not '])}{self.random.choice(TESTS)})"
        if r < 0.96:
            return f"({one} if {two} else {self.expr(depth - 1)})"
        return f"({one} if {two})" if r < 0.97 else f"[{one}, {two}]"

    def data(self):
        return self.random.choice(["", " ", "\n", "  \n", "x", "text\n", "\n  ", "\t", "é", "\n\n", "{", "}", "# "])

    def tag(self, inner):
        return "{%" + self.random.choice(["", "", "-", "+"]) + " " + inner + " " + self.random.choice(["",
        "", "-", "+"]) + "%}"

    def template(self, depth=3, in_loop=False):
        return "".join(self.data() + self.statement(depth, in_loop) for _ in range(self.random.randrange(1,
        4))) + self.data()

    def statement(self, depth, in_loop):
        r, tag, inside = self.random.random(), self.tag, lambda loop=in_loop: self.template(depth - 1, loop)
        if depth == 0 or r < 0.4:
            sign = self.random.choice(["", "", "-"])
            return "{{" + sign + " " + self.expr() + " " + sign + "}}"
        if r < 0.5:
            other = self.random.choice(["", tag("else") + inside(), tag(f"elif {self.expr(1)}") + inside()])
            return tag(f"if {self.expr(2)}") + inside() + other + tag("endif")
        if r < 0.64:
            head = self.random.choice(["x in xs", "a in m", "k, v in d.items()", "x in xs if x", "c in s",
            "x in range(3)",
                                       "x in " + self.expr(1), "t in m[1:]", "(k, v) in d|dictsort"])
            return tag("for " + head) + inside(True) + self.random.choice(["", tag("else") + inside()]) + tag("endfor")
        if r < 0.76:
            return tag(f"set {self.random.choice(['v', 'x'])} = {self.expr(2)}")
        if r < 0.8:
            return tag("set ns = namespace(a=1, x='q')") + tag(f"set ns.{self.random.choice('ax')} = {self.expr(2)}")
        if r < 0.84:
            name = self.random.choice(["f", "g"])
            return (tag(f"macro {name}(a, b=2)") + self.template(depth - 1) + tag("endmacro") + "{{ " + name
                    + self.random.choice(["(1)", "(a, b=3)", "(b)", "()", "(1, 2, 3)"]) + " }}")
        if r < 0.87:
            return tag("set block") + inside() + tag("endset")
        if r < 0.9:
            filters = self.random.choice(["upper", "trim", "replace('a', 'b')|title"])
            return tag("filter " + filters) + inside() + tag("endfilter")
        if r < 0.92:
            return tag("with x = 1, t = a") + inside() + tag("endwith")
        if r < 0.94:
            return tag("generation") + inside(False) + tag("endgeneration")
        if r < 0.96 and in_loop:
            return tag(self.random.choice(["break", "continue"]))
        if r < 0.98:
            return "{#" + self.random.choice(["", "-"]) + " no {{ x }} " + self.random.choice(["", "-"]) + "#}"
        return tag("raw") .replace("{%+", "{%").replace("+%}", "%}") + "{{ y }}\n" + tag("endraw")
