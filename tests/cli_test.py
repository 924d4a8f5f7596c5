"""The command line as its users and their scripts know it: names of commands, keys of JSON objects,
exit codes, and what is said about bad input. Usage: cli_test.py PATH_OF_STRETTO [unittest arguments],
from the root of the repository."""

import json
import pathlib
import shutil
import struct

import cli_case
from cli_case import ROOT, MODEL, DATA, PROMPT, run, CliCase

GENERATE_KEYS = ["prompt_token_ids", "token_ids", "text", "finish_reason", "tokens_per_second", "prefill_seconds"]


class GenerateTest(CliCase):
    def generate(self, *args, prompt=PROMPT, **kwargs):
        return self.json_of("generate", "--model", MODEL, "--prompt", prompt, *args,
                            keys=GENERATE_KEYS, **kwargs)

    def test_golden_text_on_two_ranks(self):
        golden = json.loads((pathlib.Path(MODEL) / "golden.json").read_text())["prompts"][0]
        self.assertEqual(golden["text"], PROMPT)
        got = self.generate("--tp", 2, "--max-tokens", 64, "--dtype", "float32")
        self.assertEqual(got["prompt_token_ids"], golden["ids"])
        self.assertEqual(got["token_ids"], golden["greedy_ids"])
        self.assertEqual(got["text"] + "</s>", golden["greedy_text"])
        self.assertEqual(got["finish_reason"], "eos")
        self.assertGreater(got["tokens_per_second"], 0)
        self.assertGreater(got["prefill_seconds"], 0)

    def test_golden_text_of_a_mixture_of_experts(self):
        model = ROOT / "checkpoints/debian-qwen3moe-18m"
        golden = json.loads((model / "golden.json").read_text())["prompts"][0]
        got = self.json_of("generate", "--model", model, "--prompt", golden["text"], "--tp", 3,
                           "--ep", 3, "--max-tokens", 64, "--dtype", "float32", "--rope-frequencies",
                           "checkpoint-dtype", keys=GENERATE_KEYS)
        self.assertEqual(got["token_ids"], golden["greedy_ids"])

    def test_prompts_dealt_out_over_data_parallel_groups(self):
        """One group serves two prompts, one serves one, and one only helps with the experts."""
        model = ROOT / "checkpoints/debian-qwen3moe-18m"
        golden = json.loads((model / "golden.json").read_text())["prompts"]
        base = ["generate", "--model", model, "--max-tokens", 8, "--dtype", "float32",
                "--rope-frequencies", "checkpoint-dtype"]
        prompts = [part for g in golden[:3] for part in ("--prompt", g["text"])]
        got = self.json_of(*base, *prompts, "--dp", 2, "--tp", 2, "--ep", 4, keys=["results"])
        self.assertEqual([r["token_ids"] for r in got["results"]],
                         [g["greedy_ids"][:8] for g in golden[:3]])
        done = self.good(*base, *prompts[:4], "--dp", 3, "--ep", 3, "--launcher", "processes")
        self.assertEqual(done.stdout.decode(), "".join(r["text"] + "\n" for r in got["results"][:2]))

    def test_prompts_through_sequence_parallel_attention(self):
        golden = json.loads((pathlib.Path(MODEL) / "golden.json").read_text())["prompts"][0]
        base = ["--max-tokens", 64, "--dtype", "float32", "--sequence-parallel"]
        for more in (["--tp", 3], ["--tp", 2, "--launcher", "processes"], ["--tp", 1]):
            self.assertEqual(self.generate(*base, *more)["token_ids"], golden["greedy_ids"], more)

    def test_streams_the_same_text(self):
        text = self.generate("--max-tokens", 12)["text"]
        done = self.good("generate", "--model", MODEL, "--prompt", PROMPT, "--max-tokens", 12)
        self.assertEqual(done.stdout.decode(), text + "\n")

    def test_rope_frequencies(self):
        """Rounded as the golden text's model had them, or exact: this text is the same."""
        exact = self.generate("--max-tokens", 20, "--dtype", "float32")["token_ids"]
        rounded = self.generate("--max-tokens", 20, "--dtype", "float32",
                                env={"STRETTO_ROPE_FREQUENCIES": "checkpoint-dtype"})["token_ids"]
        self.assertEqual(rounded, exact)
        self.refused("generate", "--model", MODEL, "--prompt", PROMPT, "--rope-frequencies", "bf16",
                     says=["rope-frequencies", "bf16", "checkpoint-dtype"])
        score = ["score", "--model", MODEL, "--file", DATA / "score_docs.txt", "--dtype", "float32"]
        nll = [self.json_of(*score, "--rope-frequencies", choice, keys=ScoreTest.KEYS)
               ["nll_per_token"] for choice in ("exact", "checkpoint-dtype")]
        self.assertNotEqual(*nll)
        self.assertAlmostEqual(*nll, delta=2e-3)

    def test_length_and_ignored_eos(self):
        got = self.generate("--max-tokens", 5)
        self.assertEqual((len(got["token_ids"]), got["finish_reason"]), (5, "length"))
        got = self.generate("--max-tokens", 40, "--ignore-eos")
        self.assertEqual((len(got["token_ids"]), got["finish_reason"]), (40, "length"))
        self.assertIn(1, got["token_ids"][:-1])

    def test_stop_strings_end_before_themselves(self):
        text = self.generate("--max-tokens", 64)["text"]
        got = self.generate("--max-tokens", 64, "--stop", "nowhere", "--stop", "development")
        self.assertEqual(got["finish_reason"], "stop")
        self.assertEqual(got["text"], text[:text.index("development")])

    def test_seeds_repeat_and_differ(self):
        sampled = ["--temperature", 1.5, "--top-k", 500, "--top-p", 0.99, "--min-p", 0.0001,
                   "--repetition-penalty", 1.1, "--max-tokens", 16, "--seed"]
        first = self.generate(*sampled, 7)["token_ids"]
        self.assertEqual(self.generate(*sampled, 7)["token_ids"], first)
        self.assertNotEqual(self.generate(*sampled, 8)["token_ids"], first)

    def test_environment_twins(self):
        want = self.generate("--max-tokens", 6, "--temperature", 2, "--seed", 5, "--dtype", "bf16")
        env = {"STRETTO_MODEL": MODEL, "STRETTO_TP": "2", "STRETTO_MAX_TOKENS": "6",
               "STRETTO_TEMPERATURE": "2", "STRETTO_SEED": "5", "STRETTO_DTYPE": "bfloat16"}
        got = self.json_of("generate", "--prompt", PROMPT, "--tp", "1", keys=GENERATE_KEYS, env=env)
        self.assertEqual(got["token_ids"], want["token_ids"])
        self.refused("generate", "--prompt", PROMPT, env={**env, "STRETTO_TP": "1000"}, says=["STRETTO_TP", "1000"])

    def test_invalid_utf8_in_the_prompt(self):
        got = self.generate("--max-tokens", 2, prompt=b"a\xff\xc3(b".decode(errors="surrogateescape"))
        same = self.generate("--max-tokens", 2, prompt="a\ufffd\ufffd(b")
        self.assertEqual(got["prompt_token_ids"], same["prompt_token_ids"])

    def test_summary_and_timeline(self):
        out = self.tmp / "run.json"
        done = self.good("generate", "--model", MODEL, "--prompt", PROMPT, "--tp", 2, "--max-tokens",
                         4, "--summary", "--trace", out)
        self.assertIn("waiting for communication", done.stderr.decode())
        self.assertTrue(json.loads(out.read_text())["traceEvents"])

    def test_bad_requests(self):
        base = ["generate", "--model", MODEL, "--prompt"]
        self.refused(*base, "", says="--prompt is empty")
        self.refused(*base, "word " * 1100, says=["1102 tokens", "1024"])
        for tp in (0, 65, 1000, -1, "two"):
            self.refused(*base, "a", "--tp", tp, says="--tp")
        self.refused(*base, "a", "--tp", 2, "--ep", 2, says=["--ep 2", "no experts"])
        text = self.refused("generate", "--model", ROOT / "checkpoints/debian-qwen3moe-18m", "--prompt", "a", "--tp", 4,
                            "--ep", 3, says=["--ep 3: 3 groups of experts", "4 ranks; possible are 1, 2, 4"])
        self.assertNotIn("config.json", text)  # nothing is wrong with the model
        self.refused(*base, "a", "--dp", 9, "--tp", 8, says=["--dp 9", "72 ranks", "64"])
        self.refused(*base, "a", "--dp", 2, "--ep", 2, says="no experts")
        self.refused(*base, "a", "--dp", 2, "--device", "cuda", says=["--dp 2", "--launcher processes"])
        self.refused(*base, "a", "--dp", 2, "--trace", self.tmp / "t", says="one data-parallel group")
        self.refused(*base, "a", "--max-tokens", 0, says="max-tokens")
        self.refused(*base, "a", "--dtype", "int9", says=["int9", "bfloat16"])
        self.refused(*base, "a", "--dtype", "int32", says="int32")
        self.refused(*base, "a", "--temperature", "nan", says="temperature")
        self.refused(*base, "a", "--top-p", "1.5", says="top_p")
        self.refused(*base, "a", "--seed", "-1", says="--seed")
        self.refused(*base, "a", "--stop", "", says="stop")
        self.refused("generate", "--prompt", "a", says="--model is required")
        self.refused("generate", "--model", MODEL, says="--prompt is required")


class BrokenModelTest(CliCase):
    """Each breaks a copy of a checkpoint in one place."""

    def copy(self, source=MODEL):
        target = self.tmp / "model"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
        for file in target.iterdir():
            file.chmod(0o644)
        return target

    def refuse(self, model, *says, **kwargs):
        return self.refused("generate", "--model", model, "--prompt", "a", says=says, **kwargs)

    def edit_json(self, file, change):
        value = json.loads(file.read_text())
        change(value)
        file.write_text(json.dumps(value))

    def edit_header(self, file, change):
        """Rewrites the header of a safetensors file in its old length, so that the data stays."""
        raw = file.read_bytes()
        size = struct.unpack("<Q", raw[:8])[0]
        header = json.loads(raw[8:8 + size])
        change(header)
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * ((size if len(text) <= size else -(-len(text) // 8) * 8) - len(text))
        file.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + size:])

    def test_safetensors(self):
        name = "model.layers.0.mlp.down_proj.weight"

        def shift(h):
            h[name]["data_offsets"] = [h[name]["data_offsets"][0] - 2, h[name]["data_offsets"][1] - 2]

        breaks = {
            "overlapping or shifted": shift,
            "outside": lambda h: h[name].update(data_offsets=[10 ** 9, 10 ** 9 + 98304]),
            "overflowing": lambda h: h[name].update(shape=[2 ** 62, 8]),
            "negative": lambda h: h[name].update(shape=[-128, 384]),
            "wrong dtype": lambda h: h[name].update(dtype="I64"),
            "unknown dtype": lambda h: h[name].update(dtype="F12"),
            "wrong shape": lambda h: h[name].update(shape=[384, 128]),
            "no offsets": lambda h: h[name].pop("data_offsets"),
        }
        for what, change in breaks.items():
            with self.subTest(what):
                model = self.copy()
                self.edit_header(model / "model.safetensors", change)
                self.refuse(model, str(model), name)

    def test_missing_and_extra_tensors(self):
        name = "model.layers.1.self_attn.q_proj.weight"
        model = self.copy()
        self.edit_header(model / "model.safetensors",
                         lambda h: h.update({"model.layers.7.self_attn.q_proj.weight": h.pop(name)}))
        self.refuse(model, name)

    def test_truncated_safetensors(self):
        raw = (pathlib.Path(MODEL) / "model.safetensors").read_bytes()
        for size in (0, 7, 8, 100, len(raw) // 2, len(raw) - 1):
            with self.subTest(size):
                model = self.copy()
                (model / "model.safetensors").write_bytes(raw[:size])
                self.refuse(model, "model.safetensors")
        model = self.copy()
        (model / "model.safetensors").write_bytes(struct.pack("<Q", 2 ** 63) + raw[8:])
        self.refuse(model, "model.safetensors")
        (model / "model.safetensors").unlink()
        self.refuse(model, "model.safetensors")

    def test_missing_shard(self):
        model = self.copy(ROOT / "checkpoints/debian-qwen3moe-18m")
        (model / "model-00002-of-00003.safetensors").unlink()
        self.refuse(model, "model-00002-of-00003.safetensors")

    def test_config(self):
        breaks = [
            ("hidden_size", 136, "model.embed_tokens.weight"),
            ("num_hidden_layers", 3, "model.layers.2"),
            ("vocab_size", 4000, "model.embed_tokens.weight"),
            ("num_key_value_heads", 3, "num_key_value_heads"),
            ("head_dim", 31, "head_dim"),
            ("hidden_size", "128", "hidden_size"),
            ("hidden_size", 1e300, "hidden_size"),
            ("model_type", "gpt17", "gpt17"),
            ("tie_word_embeddings", False, "lm_head.weight"),
        ]
        for field, value, says in breaks:
            with self.subTest(field=field, value=value):
                model = self.copy()

                def change(c):
                    c[field] = value
                    if field == "model_type":
                        c["architectures"] = ["Gpt17ForCausalLM"]
                self.edit_json(model / "config.json", change)
                self.refuse(model, str(model), says)
        for text in ("", "{", "[]", '{"a":' * 5000, "{\"model_type\": \"\xff\"}"):
            with self.subTest(text[:20]):
                model = self.copy()
                (model / "config.json").write_bytes(text.encode("latin-1"))
                self.refuse(model, "config.json")

    def test_tokenizer(self):
        def drop_merges(t):
            del t["model"]["merges"]

        def unknown_type(t):
            t["model"]["type"] = "CharLevel"
        for change, says in ((drop_merges, "merges"), (unknown_type, "CharLevel")):
            model = self.copy()
            self.edit_json(model / "tokenizer.json", change)
            self.refuse(model, "tokenizer.json", says)
            self.refused("tokenize", "--model", model, says=["tokenizer.json", says])
        (model / "tokenizer.json").write_text("{")
        self.refuse(model, "tokenizer.json")
        (model / "tokenizer.json").unlink()
        self.refuse(model, "tokenizer.json")

    def test_promised_positions_cost_nothing(self):
        """A model may promise more positions than memory holds."""
        model = self.copy()
        self.edit_json(model / "config.json",
                       lambda c: c.update(max_position_embeddings=1 << 30))
        self.good("generate", "--model", model, "--prompt", "a", "--max-tokens", 2)

    def test_directories(self):
        self.refuse("/nowhere", "/nowhere: is not a readable directory")
        self.refuse(self.tmp, "config.json")
        self.refuse(pathlib.Path(MODEL) / "config.json", "config.json")


class ScoreTest(CliCase):
    KEYS = ["nll_per_token", "tokens"]

    def test_documents_end_with_nul(self):
        docs = DATA / "score_docs.txt"
        whole = self.json_of("score", "--model", MODEL, "--tp", 2, "--file", docs, "--dtype",
                             "float32", keys=self.KEYS)
        self.assertGreater(whole["tokens"], 500)
        self.assertLess(whole["nll_per_token"], 5)
        first = self.tmp / "first"
        first.write_bytes(docs.read_bytes().split(b"\0")[0])
        one = self.json_of("score", "--model", MODEL, "--file", first, keys=self.KEYS)
        ids = json.loads(run("tokenize", "--model", MODEL, "--json", stdin=first.read_bytes()).stdout)
        self.assertEqual(one["tokens"], len(ids["token_ids"]))  # all but the first, and the EOS
        first.write_bytes(first.read_bytes() + b"\0")
        self.assertEqual(self.json_of("score", "--model", MODEL, "--file", first, keys=self.KEYS), one)
        cut = self.json_of("score", "--model", MODEL, "--file", first, "--max-tokens-per-doc", 9,
                           keys=self.KEYS)
        self.assertEqual(cut["tokens"], 8)

    def test_a_cache_of_fp8_is_coarser(self):
        score = ["score", "--model", MODEL, "--file", DATA / "score_docs.txt", "--dtype", "float32"]
        plain, one, two = [self.json_of(*score, *more, keys=self.KEYS)["nll_per_token"] for more in
                           ([], ["--kv-dtype", "fp8"], ["--kv-dtype", "fp8", "--tp", 2])]
        self.assertNotEqual(one, plain)
        self.assertAlmostEqual(one, plain, delta=0.02)
        self.assertAlmostEqual(one, two, delta=0.003)
        self.refused(*score, "--kv-dtype", "int3", says=["--kv-dtype", "int3", "fp8"])
        for options in (["--dp", 2], ["--tp", 2, "--sequence-parallel"]):
            got = self.json_of(*score, "--kv-dtype", "fp8", *options, keys=self.KEYS)["nll_per_token"]
            self.assertAlmostEqual(got, one, delta=0.003)

    def test_bad_files(self):
        self.refused("score", "--model", MODEL, "--file", "/nowhere", says="/nowhere")
        self.refused("score", "--model", MODEL, "--file", self.tmp, says=str(self.tmp))
        empty = self.tmp / "empty"
        empty.write_bytes(b"")
        self.refused("score", "--model", MODEL, "--file", empty, says=str(empty))
        long = self.tmp / "long"
        long.write_bytes(b"word " * 1100)
        self.refused("score", "--model", MODEL, "--file", long, "--max-tokens-per-doc", 5000,
                     says="1024")
        self.refused("score", "--model", MODEL, says="--file")


class TokenizeTest(CliCase):
    def test_round_trip(self):
        for text in ("a line\nand \u00e4\u00df\u6f22\U0001f600 </s> <s>  \t", "", "0"):
            ids = self.json_of("tokenize", "--model", MODEL, stdin=text.encode(), keys=["token_ids"])
            plain = self.good("tokenize", "--model", MODEL, stdin=text.encode()).stdout
            self.assertEqual([int(i) for i in plain.split()], ids["token_ids"])
            for stdin in (json.dumps(ids), json.dumps(ids["token_ids"]), plain.decode()):
                back = self.json_of("tokenize", "--model", MODEL, "--decode", stdin=stdin.encode(),
                                    keys=["text"])
                self.assertEqual(back["text"].replace("</s>", "").replace("<s>", ""),
                                 text.replace("</s>", "").replace("<s>", ""))

    def test_invalid_utf8_is_replaced_as_python_does(self):
        for raw in (b"a\xff\xc3(b", b"\xed\xa0\x80", b"\xf0\x9f\x98", b"\xc0\xaf", b"x\xe2\x82"):
            got = self.good("tokenize", "--model", MODEL, stdin=raw).stdout
            want = self.good("tokenize", "--model", MODEL,
                             stdin=raw.decode(errors="replace").encode()).stdout
            self.assertEqual(got, want, raw)

    def test_reads_only_the_tokenizer(self):
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(pathlib.Path(MODEL) / name, self.tmp)
        self.good("tokenize", "--model", self.tmp, stdin=b"text")

    def test_bad_ids(self):
        for stdin in (b"1 two", b"[1, 2.5]", b"[99999999999]", b"-4", b"99999999999", b"{}", b"[1",
                      b'{"token_ids": 3}'):
            self.refused("tokenize", "--model", MODEL, "--decode", stdin=stdin, says="")

    def test_full_disk(self):
        for args in (["tokenize", "--model", MODEL], ["--help"], ["prove", "--help"], ["--version"],
                     ["explain", "ep_moe_layer"]):  # which writes more than a buffer holds
            with open("/dev/full", "wb") as full:
                self.refused(*args, stdin=b"text", stdout=full, says="standard output")


class OtherCommandsTest(CliCase):
    def test_bench(self):
        got = self.json_of("bench", "all_gather", "--m", 33, "--n", 20, "--dtype", "bf16", "--ranks",
                           3, "--samples", 5,
                           keys=["median_ms", "p10_ms", "p90_ms", "samples", "config", "checked"])
        self.assertTrue(got["checked"])
        self.assertEqual(len(got["samples"]), 5)
        self.assertLessEqual(got["p10_ms"], got["median_ms"])
        self.assertLessEqual(got["median_ms"], got["p90_ms"])
        for part in ("all_gather", "m=33", "bf16", "P=3"):
            self.assertIn(part, str(got["config"]))

    def test_bench_compares_as_the_reference_says(self):
        """Rows of a layer of experts differ in magnitude: how far each may be off comes with the case."""
        for m, ranks in ((32, 1), (33, 3)):
            got = self.json_of("bench", "moe_layer", "--m", m, "--n", 24, "--k", 32, "--dtype", "bf16",
                               "--ranks", ranks, "--samples", 1,
                               keys=["median_ms", "p10_ms", "p90_ms", "samples", "config", "checked"])
            self.assertTrue(got["checked"], (m, ranks))

    def test_large_shapes(self):
        """A table that ends whatever a program takes, and says what is missing."""
        lines = self.good("prove", "send", "--large", "--ranks", 2, "--json").stdout.splitlines()
        *programs, totals = map(json.loads, lines)
        self.assertEqual([p["verdict"] for p in programs], ["proved"] * len(programs))
        self.assertEqual((totals["programs"], totals["complete"]), (len(programs), len(programs)))
        self.assertGreaterEqual(totals["most_peak_mb"], max(p["peak_mb"] for p in programs))
        done = run("prove", "all_reduce_packet", "--large", "--ranks", 2, "--limit-mb", 1, "--json")
        self.assertEqual(done.returncode, 5, done.stderr.decode())
        *programs, totals = map(json.loads, done.stdout.splitlines())
        large = [p for p in programs if p["verdict"] == "not complete"]
        self.assertEqual((totals["not_complete"], len(large) > 0), (len(large), True))
        for program in large:
            self.assertEqual(program["missing"][0]["expression"], "1 MB of memory, the limit")
        done = run("prove", "token_ring", "--large", "--ranks", 2, "--limit-s", 1, "--json")
        late = [p for p in map(json.loads, done.stdout.splitlines()) if p.get("verdict") == "not complete"]
        self.assertTrue(late)
        for program in late:
            self.assertIn("CPU time, the limit", program["missing"][0]["expression"])

    def test_large_shapes_at_fixed_sizes(self):
        lines = self.good("prove", "send", "--large", "--ranks", 2, "--fixed-sizes", "--json").stdout.splitlines()
        *programs, totals = map(json.loads, lines)
        self.assertEqual({p["verdict"] for p in programs}, {"proved at fixed sizes"})
        self.assertEqual(totals["complete"], len(programs))

    def test_options_that_would_be_ignored(self):
        self.refused("prove", "gemm", "--all", says=["gemm", "--all"])
        self.refused("prove", "--large", says=["--large", "--all"])
        self.refused("prove", "--all", "--large", "--ranks", "5..7", says=["--ranks", "1, 2, 4 and 8"])
        self.refused("prove", "send", "--large", "--limit-mb", 0, says=["--limit-mb"])
        self.refused("prove", "send", "--fixed-sizes", says=["--fixed-sizes", "--large"])
        self.refused("compile", "gemm", "--all", says=["gemm", "--all"])
        for option in (["--measure"], ["--graph"], ["--no-vendor"], ["--machine", "nosuch"]):
            self.refused("bench", "gemm", "--ranks", 1, *option, says=[option[0], "cuda"])
        self.refused("prove", "gemm", env={"STRETTO_LOG": "loud"}, says=["STRETTO_LOG", "loud", "debug"])

    def test_files_that_are_not_what_is_asked_for(self):
        """The answer would be about another program."""
        file = self.tmp / "two.ir"
        file.write_bytes(self.good("explain", "all_gather", "--ranks", 2).stdout)
        for command in ("prove", "explain", "predict", "bench", "compile"):
            self.refused(command, file, "--ranks", 3, says=["--ranks", "two.ir", "2 ranks"])
            self.refused(command, file, "--dtype", "bf16", says=["--dtype", "two.ir"])
        self.refused("prove", DATA / "kept_wait.cc", "--ranks", 2, "--dtype", "bf16",
                     says=["--dtype", "kept_wait.cc"])
        for args in (["--ranks", "1..4"], []):
            self.good("prove", file, *args)
        self.good("predict", file, env={"STRETTO_RANKS": "3"})
        done = self.good("prove", DATA / "kept_wait.cc", "--ranks", 2, env={"STRETTO_DTYPE": "bf16"})
        self.assertNotIn("bf16", done.stderr.decode())

    def test_whole_numbers_are_decimal(self):
        prompt = ["generate", "--model", MODEL, "--prompt", "x"]
        self.refused(*prompt, "--seed", -1, says=["--seed", "0 or more"])
        self.refused(*prompt, "--seed", 2**64, says=["--seed", "64 bits"])
        self.refused(*prompt, "--max-tokens", "0x10", says=["--max-tokens", "decimal"])
        got = [self.json_of("bench", "gemm", "--ranks", 1, "--m", "8", "--n", 8, "--k", 8, "--samples", samples,
                            keys=["median_ms", "p10_ms", "p90_ms", "samples", "config", "checked"])
               for samples in ("010", "10")]
        self.assertEqual([len(g["samples"]) for g in got], [10, 10])

    def test_bad_shapes(self):
        self.refused("bench", "gemm", "--dtype", "float33", says=["float33", "bfloat16"])
        self.refused("bench", "gemm", "--m", 99999999999999, says="--m")
        self.refused("bench", "gemm", "--m", -1, says="--m")
        self.refused("bench", "ag_gemm", "--m", 1 << 24, "--n", 1 << 24, "--k", 1 << 24, says="")
        self.refused("bench", "gemm", "--ranks", 65, says="--ranks")
        self.refused("bench", says="program")

    def test_trace_leaves_nothing_behind(self):
        self.refused("trace", "gemm", "-o", "/dev/full", says="/dev/full")
        self.assertTrue(pathlib.Path("/dev/full").is_char_device())
        self.refused("trace", "gemm", "-o", self.tmp / "no/such/x.json", says="x.json")
        self.refused("trace", "gemm", "-o", self.tmp, says=str(self.tmp))
        self.assertEqual(list(self.tmp.iterdir()), [])
        self.refused("trace", "gemm", says="--output")

    def test_trace_shows_the_prediction_beside_what_was_measured(self):
        out = self.tmp / "both.json"
        self.good("trace", ROOT / "examples/02_ag_gemm.cc", "--ranks", 2, "--samples", 2, "--machine", "h200x2", "-o",
                  out)
        trace = json.loads(out.read_text())
        events = trace["traceEvents"]
        ranks = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
        self.assertEqual(sorted(ranks.values()),
                         ["predicted, h200x2, rank 0", "predicted, h200x2, rank 1", "rank 0", "rank 1"])
        slices = [e for e in events if e["ph"] == "X"]

        def of(predicted, category):
            return [e for e in slices if ranks[e["pid"]].startswith("predicted") == predicted and e["cat"] == category]

        for predicted in (False, True):
            arrows = {p: [e["id"] for e in events if e["ph"] == p and
                          ranks[e["pid"]].startswith("predicted") == predicted] for p in "sf"}
            self.assertEqual(sorted(arrows["s"]), sorted(arrows["f"]))
            self.assertGreater(len(arrows["s"]), 0)
        # A tile of one agent on the CPU is one of the producer and one of the consumer where it is predicted.
        tiles = {p: {(ranks[e["pid"]][-1], e["args"]["tile"], e["args"]["epoch"]) for e in of(p, "tile")}
                 for p in (False, True)}
        self.assertEqual(tiles[False], tiles[True])
        self.assertEqual(len({e["args"]["epoch"] for e in slices}), 2)
        # The prediction of a launch begins with its first rank.
        for epoch in {e["args"]["epoch"] for e in slices}:
            begins = {p: min(e["ts"] for e in of(p, "tile" if p else "launch") if e["args"]["epoch"] == epoch)
                      for p in (False, True)}
            self.assertGreaterEqual(begins[True], begins[False])
            self.assertLess(begins[True], begins[False] + 1000)
        self.assertEqual(trace["otherData"]["dropped_events"], [0, 0, 0, 0])

    def test_trace_without_a_prediction(self):
        out = self.tmp / "wide.json"
        done = self.good("trace", "all_gather", "--ranks", 9, "--samples", 1, "-o", out)
        self.assertIn("no prediction: ", done.stderr.decode())
        self.assertNotIn("predicted", out.read_text())
        self.refused("trace", "all_gather", "--ranks", 9, "--machine", "h200x2", "-o", out, says="h200x2")
        self.refused("trace", "gemm", "--machine", "abacus", "-o", out, says="abacus")

    def test_what_is_not_complete_runs_for_a_reason_only(self):
        out, program = self.tmp / "t.json", DATA / "not_complete.cc"
        for command in (["trace", program, "-o", out], ["bench", program]):
            self.refused(*command, "--ranks", 1, code=5, lines=0,
                         says=["stretto: not complete: row_by_table on 1 rank is not launched", "not shown: tables",
                               "not_complete.cc:11", "--waive-proof"])
        self.assertFalse(out.exists())
        done = run("prove", program, "--ranks", 1)
        self.assertEqual((done.returncode, b"not shown: tables" in done.stderr + done.stdout), (5, True), done)
        self.good("trace", program, "--ranks", 1, "-o", out, "--waive-proof", "entries are 0 or 1")
        self.assertTrue(json.loads(out.read_text())["traceEvents"])
        self.refused("trace", program, "--ranks", 1, "-o", out, "--waive-proof", "", says="say why")
        self.refused("trace", DATA / "broken_wait.cc", "--ranks", 2, "-o", out, "--waive-proof", "it looks right",
                     code=1, lines=0, says="rejected: ")

    def test_a_proof_that_takes_too_long_names_its_limit(self):
        long = ["bench", DATA / "long_proof.cc", "--ranks", 2]
        env = {"STRETTO_PROOF_LIMIT_S": "1", "STRETTO_CACHE_DIR": str(self.tmp / "cache")}
        self.refused(*long, env=env, code=5, lines=0,
                     says=["a limit of the proof: time: 1 s on the clock", "STRETTO_PROOF_LIMIT_S"])
        done = run("prove", *long[1:], env=env)
        self.assertEqual(done.returncode, 5, done)
        self.assertIn(b"a limit of the proof: time: 1 s on the clock", done.stdout + done.stderr)
        for wrong in ("0", "-1", "soon", "1.5"):
            self.refused(*long, env={**env, "STRETTO_PROOF_LIMIT_S": wrong}, says=["STRETTO_PROOF_LIMIT_S", wrong])

    def test_timelines_that_cannot_be_written_are_refused_before_the_run(self):
        bad = self.tmp / "no/such/x.json"
        # Not a line about the program, which would be rejected.
        self.refused("trace", DATA / "broken_wait.cc", "-o", bad, says=str(bad))
        # Not a word of text.
        self.refused("generate", "--model", MODEL, "--prompt", PROMPT, "--trace", bad, says=str(bad))
        kept = self.tmp / "kept.json"
        kept.write_text("earlier")
        self.refused("generate", "--model", "/nowhere", "--prompt", PROMPT, "--trace", kept,
                     says="/nowhere")
        self.assertEqual([(f.name, f.read_text()) for f in self.tmp.iterdir()],
                         [("kept.json", "earlier")])

    def test_fault(self):
        """Eight ranks fill 64 MB each and are not all done within a millisecond of each other."""
        text = self.refused("bench", "broadcast", "--m", 4096, "--n", 4096, "--ranks", 8, code=3,
                            env={"STRETTO_TIMEOUT_MS": "1", "STRETTO_LOG": "off"},
                            says=["fault: ", "rank", "within 1 ms"])
        self.assertIn("role", text)

    def test_explain(self):
        for emit in ("tile-ir", "schedule-ir", "instances"):
            self.assertTrue(self.good("explain", "ag_gemm", "--emit", emit).stdout)
        listed = self.refused("explain", "gemm", "--after", "nowhere", says="nowhere")
        for name in listed.split("passes:")[1].split():
            self.assertTrue(self.good("explain", "gemm", "--after", name).stdout)
        self.refused("explain", "gemm", "--emit", "poetry", says="--emit")

    def test_help_names_every_command_and_option(self):
        text = self.good("--help").stdout.decode()
        options = {
            "generate": "model tp prompt max-tokens dtype rope-frequencies temperature top-k "
                        "top-p min-p repetition-penalty seed stop ignore-eos sequence-parallel json",
            "score": "model tp file dtype rope-frequencies max-tokens-per-doc sequence-parallel kv-dtype json",
            "tokenize": "model decode json",
            "prove": "all mutants ranks json",
            "explain": "after emit",
            "trace": "output",
            "bench": "m n k dtype ranks json",
        }
        for command, names in options.items():
            self.assertIn(f"  {command} ", text)
            help_text = self.good(command, "--help").stdout.decode()
            for name in names.split():
                self.assertIn(f"--{name}", help_text)

    def test_version_and_unknown_commands(self):
        self.assertRegex(self.good("--version").stdout.decode(), r"^\d+\.\d+\.\d+\n$")
        self.refused(says="generate")
        self.refused("nowhere", says="nowhere")
        self.refused("generate", "--model", MODEL, "--prompt", "a", "--colour", says="--colour")


if __name__ == "__main__":
    cli_case.main(__doc__)
