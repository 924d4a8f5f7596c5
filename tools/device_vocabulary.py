"""Device code is a vocabulary that every operator shares, out of which codegen/ writes kernels: no function there is as
long as a kernel, and no name in it is an operator's. lint calls this, and runs the samples below."""

import re

MAX_LINES = 60
FUNCTION = re.compile(r"\b(?:STRETTO_DEVICE|__device__|__global__)\b[^;{}]*\{")
TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)
NAME = re.compile(r"[A-Za-z_]\w*")
OPERATOR = re.compile(
    r"(?:^|_)(?:gemms?|matmul|attention|flash|paged|decode|prefill|moe|experts?|dispatch|combine|all_?gather|"
    r"all_?reduce|reduce_?scatter|all_?to_?all|a2a|softmax|(?:rms|layer)_?norm|rope|rotary|swiglu|embedding|lm_?head|"
    r"llama|mistral|mixtral|qwen\d?)(?:_|$)")


def problems(relative: str, text: str):
    """
    >>> body = "  v += 1;\\n" * 59
    >>> list(problems("a.h", "STRETTO_DEVICE void add(int v) {\\n" + body + "}\\n"))
    ['a.h:1: device function of 61 lines, at most 60']
    >>> list(problems("a.h", "STRETTO_DEVICE void add(int v) {\\n" + body[10:] + "}  // of attention\\n"))
    []
    >>> list(problems("a.h", "struct Box {\\n  STRETTO_DEVICE bool has(int r);\\n};\\n" + "\\n" * 99))
    []
    >>> list(problems("a.h", "struct KvBox {};\\nint load_all_gathered, kAllGather, f(AttentionTile t);\\n"))
    ['a.h:2: kAllGather is an operator, not a word of all', 'a.h:2: AttentionTile is an operator, not a word of all']
    """
    # Comments and strings may say anything; lines stay lines.
    code = TEXT.sub(lambda match: "\n" * match[0].count("\n"), text)

    def where(begin: int) -> str:
        return f"{relative}:{code.count(chr(10), 0, begin) + 1}"

    for match in FUNCTION.finditer(code):
        end, depth = match.end(), 1
        while depth > 0 and end < len(code):
            depth += {"{": 1, "}": -1}.get(code[end], 0)
            end += 1
        lines = code.count("\n", match.start(), end) + 1
        if lines > MAX_LINES:
            yield f"{where(match.start())}: device function of {lines} lines, at most {MAX_LINES}"
    for match in NAME.finditer(code):
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", match[0]).lower()
        if OPERATOR.search(words):
            yield f"{where(match.start())}: {match[0]} is an operator, not a word of all"
