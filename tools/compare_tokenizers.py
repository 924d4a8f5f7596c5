#!/usr/bin/env python3
"""Compares stretto's tokenizer with the Hugging Face `tokenizers` library (pip install tokenizers).

    tools/compare_tokenizers.py build/bin/tokenizer_lines [--lines 20000] [--other-lines 4000] [--seed N]

Trains small tokenizers of every style that stretto reads, writes them to a temporary directory, and encodes and decodes
varied texts with both. Exit code 1 when any result differs; the first differences are printed.
"""

import argparse
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

import tokenizers

sys.dont_write_bytecode = True

import tokenizer_samples as samples


def ours(tool, directory, lines):
    frames = b"".join(struct.pack("<I", len(line)) + line for line in lines)
    done = subprocess.run([tool, directory], input=frames, stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.split(b"\n")[:-1]]


def theirs(tokenizer, lines):
    texts = [line.decode("utf-8", "replace") for line in lines]
    ids = [e.ids for e in tokenizer.encode_batch_fast(texts)]
    plain = [e.ids for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    tokenizer.encode_special_tokens = True
    split = [e.ids for e in tokenizer.encode_batch_fast(texts)]
    tokenizer.encode_special_tokens = False
    text = tokenizer.decode_batch(ids)
    shown = tokenizer.decode_batch(ids, skip_special_tokens=False)
    keys = ("ids", "plain", "split", "text", "shown")
    return [dict(zip(keys, row)) for row in zip(ids, plain, split, text, shown)]


def theirs_in_parts(tokenizer, lines):
    # The reference's encodings are large; a part at a time bounds the memory.
    return [row for at in range(0, len(lines), 500) for row in theirs(tokenizer, lines[at : at + 500])]


def compare(tool, name, built, lines):
    tokenizer, config = built
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory)
        tokenizer.save(str(path / "tokenizer.json"), pretty=False)
        (path / "tokenizer_config.json").write_text(json.dumps(config))
        # The reference reads the same file, as a user of the checkpoint would.
        reference = theirs_in_parts(tokenizers.Tokenizer.from_file(str(path / "tokenizer.json")), lines)
        result = ours(tool, directory, lines)
    different = [i for i in range(len(lines)) if result[i] != reference[i]]
    print(f"{name}: {len(lines)} lines, {len(different)} differ", flush=True)
    for i in different[:3]:
        print("  text:", lines[i][:300])
        for key in reference[i]:
            if result[i][key] != reference[i][key]:
                print(f"  {key}: stretto   {str(result[i][key])[:300]}")
                print(f"  {key}: reference {str(reference[i][key])[:300]}")
    return len(different)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", help="build/bin/tokenizer_lines")
    parser.add_argument("--lines", type=int, default=20000, help="for each of the GPT-2, Llama-3 and Qwen2 styles")
    parser.add_argument("--other-lines", type=int, default=4000, help="for each other style")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    print(f"tokenizers {tokenizers.__version__}, seed {options.seed}")
    every = samples.code_point_lines()
    lines = samples.make_lines(options.seed, options.lines)
    other_lines = samples.make_lines(options.seed + 1, options.other_lines)
    differ = compared = 0
    jobs = [(name, style, lines + every) for name, style in samples.STYLES.items()]
    jobs += [(name, style, other_lines) for name, style in samples.OTHERS.items()]
    jobs += [(f"all code points, {form}", samples.OTHERS[form], every) for form in ("NFC", "NFD", "NFKC", "NFKD")]
    jobs += [(f"all code points, {c}", lambda c=c: samples.class_style(c), every) for c in samples.CLASSES]
    for name, style, texts in jobs:
        differ += compare(options.tool, name, style(), texts)
        compared += len(texts)
    print(f"{compared} lines compared, {differ} differ")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
