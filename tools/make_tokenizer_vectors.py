#!/usr/bin/env python3
"""Writes test data of the tokenizer: small trained tokenizers and what the Hugging Face library makes of texts.

    tools/make_tokenizer_vectors.py [DIR]     (pip install tokenizers; DIR defaults to the committed test data)

Each DIR/STYLE holds a tokenizer.json, a tokenizer_config.json and vectors.json: a list of
{"bytes": hex of the input, "ids", "plain" (without special tokens), "split" (special tokens in the text as plain text),
"text" (decoded), "shown" (decoded with specials)}, where `plain` and `split` are left out when they equal `ids`, and
`shown` when it equals `text`.
"""

import json
import pathlib
import sys

sys.dont_write_bytecode = True

import compare_tokenizers
import tokenizer_samples as samples

NUM_LINES = 120
MAX_BYTES = 140


def distinct(row):
    same = {"plain": "ids", "split": "ids", "shown": "text"}
    return {key: value for key, value in row.items() if key not in same or value != row[same[key]]}


def main():
    here = pathlib.Path(__file__).resolve().parent.parent
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "stretto/model/tokenizer/testdata"
    lines = [line for line in samples.make_lines(20, 8 * NUM_LINES) if len(line) <= MAX_BYTES][:NUM_LINES]
    for name, style in samples.STYLES.items():
        tokenizer, config = style(vocab_size=600)
        path = root / name
        path.mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(path / "tokenizer.json"), pretty=False)
        (path / "tokenizer_config.json").write_text(json.dumps(config) + "\n")
        rows = compare_tokenizers.theirs(tokenizer, lines)
        vectors = [{"bytes": line.hex(), **distinct(row)} for line, row in zip(lines, rows)]
        text = ",\n".join(json.dumps(v, separators=(",", ":"), ensure_ascii=False) for v in vectors)
        (path / "vectors.json").write_text(f"[\n{text}\n]\n")


if __name__ == "__main__":
    main()
