"""Weights of e4m3 with scales of blocks: read from checkpoints or made at loading, against NumPy; and what is refused.
If this fails, a published fp8 checkpoint writes nonsense or is taken for something else. Usage: fp8_weights_test.py
PATH_OF_STRETTO [unittest arguments], from the root of the repository."""

import json
import shutil
import sys

import python_environment

if len(sys.argv) > 1:
    python_environment.needs("numpy", sys.argv[1])

try:
    import numpy as np
except ImportError:
    print("skipped: needs numpy; tools/build --check installs it")
    sys.exit(77)

import cli_case
import fp8_checkpoint
from cli_case import CliCase, ROOT
from fp8_reference import Model, coarse

KEYS = ["nll_per_token", "tokens"]
# Nats of a token, on average of a document. Numbers of e4m3 are 2^-3 of a power of two apart: what is rounded to them
# is wrong by 2^-4 of itself at most. Where sums are ordered otherwise, some of it is rounded the other way.
COARSE, ROUNDED = 2**-4, 0.012
LLAMA, EXPERTS = "debian-llama-8m", "debian-qwen3moe-18m"


def bundled(name):
    return ROOT / "checkpoints" / name


class Fp8Case(CliCase):
    def converted(self, name=LLAMA):
        return fp8_checkpoint.convert(bundled(name), self.tmp / f"fp8-{name}")

    def nll(self, model, file, *options):
        return self.json_of("score", "--model", model, "--file", file, "--dtype", "float32", *options, keys=KEYS)

    def document(self):
        path = self.tmp / "document"
        path.write_bytes((ROOT / "tests/data/score_docs.txt").read_bytes().split(b"\0")[0])
        return path

    def generate(self, model, *options):
        return self.good("generate", "--model", model, "--prompt", cli_case.PROMPT, "--max-tokens", 24, "--dtype",
                         "float32", *options).stdout


class CheckpointTest(Fp8Case):
    def test_is_what_numpy_computes_of_the_dequantised_weights(self):
        """Beside NumPy with activations that are as coarse, and with exact ones."""
        for name in (LLAMA, EXPERTS):
            model, document = self.converted(name), self.document()
            told = self.json_of("tokenize", "--model", model, stdin=document.read_bytes(), keys=["token_ids"])
            tokens = told["token_ids"] + [1]  # the end of the text
            got = self.nll(model, document)
            self.assertEqual(got["tokens"], len(tokens) - 1)
            weights = fp8_checkpoint.weights(model)
            same = Model(model, weights, coarse).nll(tokens)
            exact = Model(model, weights).nll(tokens)
            self.assertAlmostEqual(got["nll_per_token"], same.mean(), delta=ROUNDED, msg=name)
            self.assertAlmostEqual(got["nll_per_token"], exact.mean(), delta=COARSE, msg=name)
            self.assertNotAlmostEqual(got["nll_per_token"], exact.mean(), delta=1e-6, msg=name)

    def test_made_at_loading_is_the_same(self):
        """What --weights fp8 makes is to the bit what NumPy made."""
        for name in (LLAMA, EXPERTS):
            model, document = self.converted(name), self.document()
            self.assertEqual(self.nll(model, document), self.nll(bundled(name), document, "--weights", "fp8"))
            self.assertEqual(self.generate(model), self.generate(bundled(name), "--weights", "fp8"))
            self.assertEqual(self.generate(model), self.generate(model, "--weights", "fp8"))

    def test_ranks_have_scales_of_their_shares(self):
        document = self.document()
        for name, cuts in ((LLAMA, ([1, 1], [2, 1])), (EXPERTS, ([2, 1], [2, 2]))):
            model = self.converted(name)
            one = self.nll(model, document)["nll_per_token"]
            for tp, ep in cuts:
                got = self.nll(model, document, "--tp", tp, "--ep", ep)["nll_per_token"]
                self.assertAlmostEqual(got, one, delta=ROUNDED, msg=f"{name} tp {tp} ep {ep}")
            for tp in (3, 4):  # shares that are no whole blocks of the checkpoint
                got = self.nll(bundled(name), document, "--weights", "fp8", "--tp", tp)["nll_per_token"]
                self.assertAlmostEqual(got, one, delta=COARSE, msg=f"{name} tp {tp}")

    def test_data_groups(self):
        document = self.document()
        model = self.converted(EXPERTS)
        one = self.nll(model, document)["nll_per_token"]
        for options in (["--dp", 2], ["--dp", 2, "--ep", 2], ["--dp", 2, "--tp", 2, "--ep", 4]):
            got = self.nll(model, document, *options)["nll_per_token"]
            self.assertAlmostEqual(got, one, delta=ROUNDED, msg=str(options))

    def test_scales_of_bfloat16(self):
        model = self.converted()
        tensors = fp8_checkpoint.read_tensors(model / "model.safetensors")
        for name, (dtype, shape, data) in tensors.items():
            if name.endswith("_scale_inv"):
                words = np.frombuffer(data, "<u4") >> 16
                tensors[name] = ("BF16", shape, words.astype("<u2").tobytes())
        fp8_checkpoint.write_tensors(model / "model.safetensors", tensors)
        document = self.document()
        told = self.json_of("tokenize", "--model", model, stdin=document.read_bytes(), keys=["token_ids"])
        want = Model(model, fp8_checkpoint.weights(model), coarse).nll(told["token_ids"] + [1]).mean()
        self.assertAlmostEqual(self.nll(model, document)["nll_per_token"], want, delta=ROUNDED)

    def test_steps_of_a_model(self):
        """predict knows them, from config.json or as asked for, and counts their bytes."""
        def memory(model, *options):
            told = self.good("predict", "--model", model, "--machine", "h200x4", "--json", *options).stdout
            return json.loads(told)["memory"]["weights"]
        for name in (LLAMA, EXPERTS):
            plain, model = memory(bundled(name)), self.converted(name)
            config = json.loads((model / "config.json").read_text())
            embedding = config["vocab_size"] * config["hidden_size"] * 2
            for fp8 in (memory(model), memory(bundled(name), "--weights", "fp8")):
                self.assertAlmostEqual(fp8 - embedding, (plain - embedding) / 2, delta=0.02 * plain)
            self.assertLess(memory(model, "--tp", 2), 0.8 * memory(model))


class RefusedTest(Fp8Case):
    def refused_model(self, model, *says, options=()):
        return self.refused("generate", "--model", model, "--prompt", "a", *options, says=says)

    def damage(self, change, *says):
        """Converted, with `change(tensors)` made to it."""
        model = self.converted()
        tensors = fp8_checkpoint.read_tensors(model / "model.safetensors")
        change(tensors)
        fp8_checkpoint.write_tensors(model / "model.safetensors", tensors)
        self.refused_model(model, *says)
        shutil.rmtree(model)

    def test_damaged_checkpoints(self):
        name = "model.layers.3.mlp.down_proj.weight"
        scales = name + "_scale_inv"

        def with_scales(value):
            def change(tensors):
                values = np.frombuffer(tensors[scales][2], np.float32).copy()
                values[5] = value
                tensors[scales] = ("F32", tensors[scales][1], values.tobytes())
            return change
        self.damage(lambda t: t.pop(scales), scales, "missing", "[2, 8]")
        self.damage(lambda t: t.pop(name), f"'{name}'", "missing")
        self.damage(lambda t: t.update({scales: ("F32", [8, 2], t[scales][2])}), scales, "[2, 8]", "[8, 2]")
        self.damage(lambda t: t.update({scales: ("I32", [2, 8], t[scales][2])}), scales, "dtype", "float32")
        self.damage(lambda t: t.update({name: ("F8_E5M2", *t[name][1:])}), f"'{name}'", "F8_E5M2", "float8_e4m3fn")
        self.damage(lambda t: t.update({name: ("BF16", t[name][1], 2 * t[name][2])}), f"'{name}'", "float8_e4m3fn")
        for value in (float("nan"), float("inf"), -1):
            self.damage(with_scales(value), scales, "block 0, 5")
        self.damage(lambda t: t.update({"model.layers.9.scale": ("F32", [1], b"\0" * 4)}), "model.layers.9.scale")

    def with_config(self, **fields):
        model = self.tmp / "refused"
        shutil.rmtree(model, ignore_errors=True)
        shutil.copytree(bundled(LLAMA), model)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, **fields}))
        return model

    def test_other_formats_are_named(self):
        """With what works instead; predict, which reads nothing but config.json, says the same."""
        fp8 = fp8_checkpoint.CONFIG
        works = "what works: e4m3"
        cases = [({"quant_method": method}, method)
                 for method in ("awq", "gptq", "bitsandbytes", "compressed-tensors", "mxfp4", "fbgemm_fp8", "modelopt",
                                "quark", "hqq", "aqlm", "torchao", "eetq")]
        cases += [({"load_in_4bit": True}, "bitsandbytes"), ({"bits": 4}, "quant_method"),
                  ({**fp8, "weight_block_size": [64, 64]}, "weight_block_size [64, 64]"),
                  ({**fp8, "weight_block_size": [128]}, "weight_block_size"),
                  ({**fp8, "weight_block_size": None}, "weight_block_size"),
                  ({**fp8, "activation_scheme": "static"}, "'static'"), ({**fp8, "fmt": "e5m2"}, "'e5m2'"),
                  ({**fp8, "modules_to_not_convert": ["lm_head", "model.layers.2.mlp.up_proj"]}, "2.mlp.up_proj"),
                  ({**fp8, "kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme")]
        for quantization, word in cases:
            model = self.with_config(quantization_config=quantization)
            self.refused_model(model, "config.json: quantization_config", word, works)
            self.refused("predict", "--model", model, says=["quantization_config", word, works])

    def test_cuts_through_blocks(self):
        model = self.converted()
        self.refused_model(model, "4 tensor-parallel ranks", "64 rows of k_proj", "possible are 1, 2",
                           options=["--tp", 4])
        self.refused("predict", "--model", model, "--tp", 4, says=["k_proj", "possible are 1, 2"])
        self.refused_model(model, "--sequence-parallel", options=["--tp", 2, "--sequence-parallel"])
        self.refused_model(bundled(LLAMA), "--weights", "int4", options=["--weights", "int4"])


if __name__ == "__main__":
    cli_case.main(__doc__)
