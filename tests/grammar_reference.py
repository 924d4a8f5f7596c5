"""Schemas and regular expressions by lot, and what else says which texts they allow: llguidance for masks, jsonschema
and re for texts."""

import fractions
import json

import jsonschema
import llguidance

WORDS = ["a", "b", "id", "name", "new", "size", "größe", "x y", 'quo"te', "tab\tted", "日本", "", "0"]
PATTERNS = ["^[a-z]{1,5}$", "^a", "b$", "^[A-Z][a-z]+( [A-Z][a-z]+)?$", "x.y", "^\\d{2,4}-\\d{2}$",
            "^(foo|bar|ba[rz]x)+$",
            "^[^a-z]*$", "^\\S+@\\S+$", "é", "^[\\w-]+\\.(?:md|txt)$", "^(\"[a-z]*\"|\\\\)$"]


def scalar(random):
    return random.choice([None, True, False, random.randrange(-1000, 1000), random.choice(WORDS),
                          random.choice([0.5, -2.25, 1e-3, 12345.678])])


def bounds(random, is_integer):
    low = random.randrange(-200, 200) if is_integer else round(random.uniform(-20, 20), random.randrange(4))
    high = low + (random.randrange(1, 500) if is_integer else round(random.uniform(0.5, 50), random.randrange(4)))
    out = {}
    if random.random() < 0.7:
        out[random.choice(["minimum", "exclusiveMinimum"])] = low
    if random.random() < 0.7:
        out[random.choice(["maximum", "exclusiveMaximum"])] = high + 1
    return out


# What llguidance does not have, or has in another way.
OURS = ["unique", "names", "not", "notText", "if", "dependent", "overlap", "exclusive", "counted", "forbidden", "cents"]


def schema(random, depth=0, refs=(), in_value=False, more=()):
    """One that allows some value. `in_value`: it says what an object or a list has. `more`: kinds beside those that
    llguidance has, too."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "length", "bounds", "pattern"]
    kinds += ["multiple", "bothBounds", *more]
    if depth < 4:
        kinds += ["named", "members"]
        kinds += ["object", "object", "array", "tuple", "anyOf", "types", "map", "any"]
    if refs and in_value:
        kinds += ["ref"]
    kind = random.choice(kinds)
    inner = lambda: schema(random, depth + 1, refs, kind != "anyOf", more)
    if kind in ("string", "integer", "number", "boolean", "null"):
        return {"type": kind}
    if kind == "enum":
        return {"enum": [scalar(random) for _ in range(random.randrange(1, 5))]}
    if kind == "const":
        return {"const": random.choice([scalar(random), {"k": [scalar(random)]}, []])}
    if kind == "length":
        low = random.randrange(4)
        return {"type": "string", "minLength": low, "maxLength": low + random.randrange(6)}
    if kind == "bounds":
        is_integer = random.random() < 0.5
        return {"type": "integer" if is_integer else "number", **bounds(random, is_integer)}
    if kind == "pattern":
        return {"type": "string", "pattern": random.choice(PATTERNS)}
    if kind == "object":
        names = random.sample(WORDS, random.randrange(1, 6))
        required = [n for n in names if random.random() < 0.6]
        return {"type": "object", "properties": {n: inner() for n in names}, "required": required,
                "additionalProperties": random.choice([False, False, {"type": "integer"}])}
    if kind == "array":
        low = random.randrange(3)
        return {"type": "array", "items": inner(), "minItems": low, "maxItems": low + random.randrange(4)}
    if kind == "tuple":
        first = [inner() for _ in range(random.randrange(1, 4))]
        return {"type": "array", "prefixItems": first, "items": random.choice([False, {"type": "null"}]),
                "minItems": random.randrange(len(first) + 1)}
    if kind == "anyOf":
        return {"anyOf": [inner() for _ in range(random.randrange(1, 4))]}
    if kind == "types":
        return {"type": random.sample(["string", "integer", "boolean", "null"], 2)}
    if kind == "map":
        return {"type": "object", "additionalProperties": inner()}
    if kind == "multiple":
        return {"type": "integer", "multipleOf": random.choice([1, 2, 3, 7, 10, 25, 60]),
                **random.choice([{}, {"minimum": 5}, {"maximum": 1000, "minimum": -1000}])}
    if kind == "bothBounds":
        return {"allOf": [{"type": "integer", "minimum": random.randrange(5)}, {"maximum": random.randrange(5, 99)},
                          {"minimum": random.randrange(5)}]}
    if kind == "named":
        first, second = random.sample(["^[a-m]{1,4}$", "^[n-z]", "^_", "^[0-9]+$", "^\\$ref$"], 2)
        return {"type": "object", "patternProperties": {first: inner(), second: {"type": "null"}},
                "additionalProperties": random.choice([False, {"type": "boolean"}]),
                **random.choice([{}, {"properties": {"A": inner(), "-b": {"type": "integer"}}, "required": ["A"]}])}
    if kind == "members":
        names = random.sample(WORDS, 3)
        return {"type": "object", "properties": {n: {"type": "integer"} for n in names}, "additionalProperties": False,
                "anyOf": [{"required": names[:1]}, {"required": names[1:2]}]}
    if kind in OURS:
        return ours(random, kind, inner)
    if kind == "any":
        return random.choice([{}, True])
    return {"$ref": "#/$defs/" + random.choice(refs)}


def ours(random, kind, inner):
    a, b, c = random.sample(WORDS, 3)
    two = {"type": "object", "properties": {a: inner(), b: {"type": "integer"}}, "additionalProperties": False}
    if kind == "unique":
        return {"type": "array", "uniqueItems": True, "minItems": random.randrange(3), "items": random.choice(
            [{"enum": [1, "1", 1.0, None, {"k": 2}, [1]]}, {"enum": WORDS[:6]}, {"type": "boolean"}])}
    if kind == "names":
        return {"type": "object", "propertyNames": random.choice(
            [{"pattern": "^[a-z]"}, {"maxLength": 3}, {"enum": WORDS}, {"not": {"const": a}},
             {"anyOf": [{"pattern": "x"}, {"const": b}]}]), "additionalProperties": inner(),
                **random.choice([{}, {"properties": {c: inner()}}])}
    if kind == "not":
        return random.choice([
            {"not": {"type": ["string", "object", "array"]}},
            {"type": ["integer", "null"], "not": {"enum": [0, 7, None]}},
            {"enum": [a, b, 1, None], "not": {"const": a}}, {"type": "boolean", "not": {"const": True}},
            {"not": {"anyOf": [{"type": "string"}, {"type": ["array", "object"]}]}}])
    if kind == "notText":
        return {"type": "string", "maxLength": 8, "not": random.choice(
            [{"enum": [a, b, 3]}, {"pattern": "^[a-zA-Z]"}, {"type": "string", "minLength": 3}, {"const": ""}])}
    if kind == "if":
        condition = random.choice([{"properties": {a: {"const": "x"}}}, {"required": [b]},
                                   {"properties": {a: {"enum": ["x", "z"]}}, "required": [a]}])
        return {"type": "object", "properties": {a: {"enum": ["x", "y", "z"]}, b: inner(), c: {"type": "null"}},
                "if": condition, "then": random.choice([{"required": [c]}, {"properties": {c: False}}]),
                **random.choice([{}, {"else": {"required": [b]}}, {"required": [a]}])}
    if kind == "dependent":
        return {**two, "dependentRequired": {a: [b]}}
    if kind == "overlap":
        return {"type": "object", "patternProperties": {"^[a-z]": {"type": "integer"}, "[0-9a]$": {"minimum": 3}},
                "properties": {a: {"type": "integer"}, "x1": {"maximum": 50}}, "required": ["x1"]}
    if kind == "exclusive":
        return {**two, "oneOf": [{"required": [a]}, {"required": [b]}]}
    if kind == "counted":
        return random.choice([
            {**two, "minProperties": 1}, {**two, "maxProperties": 1},
            {"type": "object", "additionalProperties": inner(), "minProperties": 1, "maxProperties": 2},
            {"type": "object", "properties": {a: inner(), b: inner()}, "minProperties": 3, "maxProperties": 4,
             "additionalProperties": {"type": "null"}}])
    if kind == "forbidden":
        return {**two, "not": random.choice([{"required": [a, b]}, {"required": [b]}])}
    return {"type": "number", "multipleOf": random.choice([0.01, 0.5, 0.25, 0.001, 12.5, 3]),
            **random.choice([{}, {"minimum": 0, "exclusiveMaximum": 100}])}  # "cents"


class Written(float):
    """A number that knows its digits."""

    def __new__(cls, text):
        self = super().__new__(cls, text)
        self.text = text
        return self


def is_multiple(_, divisor, value, __):
    """Of numbers as they are written: jsonschema takes 0.07 for no multiple of 0.01."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if fractions.Fraction(getattr(value, "text", str(value))) % fractions.Fraction(str(divisor)):
            yield jsonschema.ValidationError(f"{value} is no multiple of {divisor}")


def document(random, more=()):
    """A schema with definitions, which may lead back to themselves where something else may stand."""
    names = random.sample(["one", "two", "a/b", "t~"], random.randrange(3))
    refs = [n.replace("~", "~0").replace("/", "~1") for n in names]
    out = schema(random, 0, refs, more=more)
    if isinstance(out, dict) and names:
        out["$defs"] = {n: {"anyOf": [{"type": "null"}, schema(random, 1, refs, more=more)]} for n in names}
    return out


VALIDATOR = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"multipleOf": is_multiple})


def check(schema, text):
    """Raises where the text is not valid."""
    value = json.loads(text, parse_float=Written)
    VALIDATOR(schema).validate(value)
    return value


def is_valid(schema, text):
    try:
        check(schema, text)
    except ValueError:  # no JSON
        return False
    except jsonschema.ValidationError:
        return False
    return True


class Reference:
    """llguidance on a tokenizer.json."""

    def __init__(self, directory, vocab_size, end):
        self.end = end
        added = json.loads((directory / "tokenizer.json").read_text())["added_tokens"]
        self.added = {token["id"] for token in added} - {end}  # as special ones to llguidance
        self.tokenizer = llguidance.LLTokenizer(str(directory / "tokenizer.json"), n_vocab=vocab_size, eos_token=end)

    def schema(self, schema):
        schema = {} if schema is True else schema
        compact = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
        return self.matcher(llguidance.LLMatcher.grammar_from_json_schema(schema, overrides=compact))

    def regex(self, regex):
        return self.matcher(llguidance.LLMatcher.grammar_from_regex(regex))

    def matcher(self, grammar):
        matcher = llguidance.LLMatcher(self.tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def bytes(self, tokens):
        return self.tokenizer.decode_bytes(tokens)

    @staticmethod
    def allowed(matcher):
        bits = int.from_bytes(matcher.compute_bitmask(), "little")
        out = set()
        while bits:
            low = bits & -bits
            out.add(low.bit_length() - 1)
            bits ^= low
        return out


def regex(random, depth=0):
    """Over the letters a, b and c."""
    kind = random.randrange(8 if depth < 3 else 3)
    if kind < 2:
        return random.choice("abc")
    if kind == 2:
        return random.choice(["[ab]", "[^a]", ".", "\\w", "[a-c]", "b?", "c*"])
    if kind < 5:
        return "".join(regex(random, depth + 1) for _ in range(random.randrange(1, 4)))
    if kind == 5:
        return "(" + "|".join(regex(random, depth + 1) for _ in range(random.randrange(1, 4))) + ")"
    low = random.randrange(3)
    times = random.choice(["*", "+", "?", f"{{{low}}}", f"{{{low},}}", f"{{{low},{low + 2}}}"])
    return "(?:" + regex(random, depth + 1) + ")" + times


