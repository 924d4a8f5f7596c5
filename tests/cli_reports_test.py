"""Bugs that users of other programs reported, tried here: models that are damaged or hostile, texts that are hard to
cut, machines that are set up oddly. docs/lab/reports.md lists the reports. Usage: cli_reports_test.py PATH_OF_STRETTO
[unittest arguments], from the root of the repository."""

import json
import os
import re
import shutil
import struct
import subprocess
import unittest

import cli_case
from cli_case import HANGS, MODEL, PROMPT, ROOT, STRETTO, run
from cli_models_test import ModelCase, tensors_of, write_tensors

SECONDS = 60  # of a processor, for what takes one or two


def header_of(path):
    data = path.read_bytes()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:end]), data[end:]


def write_header(path, text, data):
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


class WeightsTest(ModelCase):
    """safetensors files that a download or somebody else has made."""

    def with_header(self, change):
        model = self.model()
        path = model / "model.safetensors"
        header, data = header_of(path)
        text = change(header)
        write_header(path, text if isinstance(text, bytes) else json.dumps(header).encode(), data)
        return model

    def test_files_that_are_cut_or_longer(self):
        model = self.model()
        path = model / "model.safetensors"
        whole = path.read_bytes()
        for size in (0, 5, 8, 100, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:size])
            self.refused_model(model, "model.safetensors")
        path.write_bytes(whole + b"\0" * 7)
        self.refused_model(model, "7 bytes at the end belong to no tensor")

    def test_headers_that_lie(self):
        """Sizes that wrap to nothing, ranges past the end, over each other or of another size, an unknown dtype."""
        name = "model.norm.weight"

        def set_to(**fields):
            return lambda header: header[name].update(fields)

        for change in (set_to(shape=[2**32, 2**32], data_offsets=[0, 0]), set_to(shape=[2**40]),
                       set_to(data_offsets=[0, 2**63]), set_to(data_offsets=[-2, 0]), set_to(data_offsets=[64, 32]),
                       set_to(data_offsets=[0, 1, 2]), set_to(shape=[-1]), set_to(shape=["1"]), set_to(shape=[1.5]),
                       set_to(dtype="I4", data_offsets=[2**62, 2**62]), set_to(dtype=3)):
            self.refused_model(self.with_header(change), name, "model.safetensors")

    def test_tensors_that_are_named_twice(self):
        def twice(header):
            entry = json.dumps(header["model.norm.weight"])
            return json.dumps(header).encode()[:-1] + b', "model.norm.weight": ' + entry.encode() + b"}"

        self.refused_model(self.with_header(twice), "model.safetensors", "model.norm.weight")

    def test_nesting_without_an_end(self):
        deep = b'{"a":' * 100000 + b"1" + b"}" * 100000
        self.refused_model(self.with_header(lambda header: deep), "model.safetensors")
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            model = self.model()
            (model / name).write_bytes(deep)
            self.refused_model(model, name)

    def test_indices_that_lead_out_of_the_folder(self):
        other = self.model("other")
        model = self.model()
        (model / "model.safetensors").unlink()
        names = list(tensors_of(other / "model.safetensors"))
        for file in ("../other/model.safetensors", str(other / "model.safetensors"), "/etc/passwd",
                     "x/../../other/model.safetensors", "..", ".", ""):
            index = {"metadata": {}, "weight_map": dict.fromkeys(names, file)}
            (model / "model.safetensors.index.json").write_text(json.dumps(index))
            self.refused_model(model, "model.safetensors.index.json")

    def test_names_of_other_programs(self):
        """Without the head, without 'model.' before each name, and with another program's names."""
        base = tensors_of(self.model() / "model.safetensors")
        for rename, missing in ((lambda n: n.removeprefix("model."), "embed_tokens.weight"),
                                (lambda n: "base_model." + n, "embed_tokens.weight"),
                                (lambda n: n.replace("self_attn", "attention"), "self_attn")):
            model = self.model()
            write_tensors(model / "model.safetensors", {rename(name): tensor for name, tensor in base.items()})
            self.refused_model(model, missing, "missing")
        untied = self.model(config={"tie_word_embeddings": False})
        self.refused_model(untied, "lm_head.weight", "missing")

    def test_other_formats_are_named(self):
        for file in ("pytorch_model.bin", "model.gguf", "consolidated.00.pth", "consolidated.safetensors"):
            model = self.model()
            (model / "model.safetensors").rename(model / file)
            self.refused_model(model, "model.safetensors", file)
        model = self.model()
        self.refused_model(model / "model.safetensors", "is not a readable directory")

    def test_a_consolidated_copy_beside_is_not_loaded(self):
        model = self.model()
        shutil.copy(model / "model.safetensors", model / "consolidated.safetensors")
        self.assertEqual(self.silent(model).stdout, self.generate(MODEL).stdout)

    def test_quantised_weights_are_refused(self):
        for method in ("awq", "gptq", "fp8", "bitsandbytes", "compressed-tensors"):
            self.refused_model(self.model(config={"quantization_config": {"quant_method": method, "bits": 4}}),
                               "config.json", "quantization_config")

    def test_a_file_that_is_exchanged_while_it_is_read(self):
        """The weights are of one file: what a new download puts in its place belongs to the next start."""
        model = self.model()
        draft = self.tmp / "draft"
        draft.write_bytes(b"")
        process = subprocess.Popen([STRETTO, "generate", "--model", model, "--prompt", PROMPT, "--max-tokens", "400"],
                                   cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdout.read(1)
        draft.rename(model / "model.safetensors")
        said = process.communicate(timeout=HANGS)[1]
        self.assertEqual((process.returncode, said), (0, b""))


class ConfigTest(ModelCase):
    def test_null_means_absent(self):
        expected = self.generate(MODEL).stdout
        for field in ("head_dim", "sliding_window", "rope_scaling", "pad_token_id", "quantization_config",
                      "attention_bias", "transformers_version"):
            self.assertEqual(self.generate(self.model(config={field: None})).stdout, expected, field)

    def test_code_of_others_is_not_run(self):
        """auto_map, model_file and their like name Python files; there is nothing here that runs them."""
        model = self.model(config={"auto_map": {"AutoModelForCausalLM": "evil.Evil"}, "model_file": "evil.py",
                                   "trust_remote_code": True, "_attn_implementation_internal": "evil/evil"},
                           tokenizer_config={"auto_map": {"AutoTokenizer": ["evil.Evil", None]}})
        (model / "evil.py").write_text(f"open({str(self.tmp / 'ran')!r}, 'w')\n")
        self.generate(model)
        self.assertFalse((self.tmp / "ran").exists())

    def test_a_field_that_is_there_twice(self):
        model = self.model()
        path = model / "config.json"
        path.write_text(path.read_text().rstrip()[:-1] + ', "vocab_size": 1, "vocab_size": 2}')
        self.refused_model(model, "config.json", "vocab_size")

    def test_a_byte_order_mark_changes_nothing(self):
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            model = self.model()
            path = model / name
            path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
            self.assertEqual(self.silent(model).stdout, self.generate(MODEL).stdout, name)

    def test_sizes_that_no_machine_has(self):
        for field in ("hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size", "num_attention_heads",
                      "max_position_embeddings", "num_key_value_heads"):
            for value in (0, -1, 2**31, 2**62, 1e300, "8", 1.5, [8], True):
                with self.subTest(field, value=value):
                    done = run("generate", "--model", self.model(config={field: value}), "--prompt", PROMPT,
                               "--max-tokens", 1)
                    said = done.stderr.decode()
                    self.assertIn(done.returncode, (0, 2), said)
                    if done.returncode:
                        self.assertRegex(said, r"(?m)^stretto: error: ")


class TextsTest(ModelCase):
    """What takes other tokenizers minutes, or their stack."""

    def within(self, model, text, options=()):
        def limit():
            import resource
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))

        done = subprocess.run([STRETTO, "tokenize", "--model", model, *options], input=text, preexec_fn=limit,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=HANGS, cwd=ROOT)
        self.assertEqual(done.returncode, 0, done.stderr[-500:])
        return [int(word) for word in done.stdout.split()]

    def test_a_million_of_one_character(self):
        for piece in ("a", "^", " ", "_", "\n", "1", "\u00e9", "\u4e2d", "\U0001f600", "ab", "a\u0301", "\u200d"):
            with self.subTest(repr(piece)):
                text = (piece * (1_000_000 // len(piece))).encode()
                ids = self.within(MODEL, text)
                back = self.good("tokenize", "--model", MODEL, "--decode",
                                 stdin=" ".join(map(str, ids)).encode()).stdout
                self.assertIn(text[:1000], back)

    def test_patterns_that_other_engines_never_finish(self):
        for pattern in ("(a+)+$", "(a|aa)+$", "(a|a?)+$", "([a-z]+)*b", "((?=[a-z])([^A-Z]))+", "(.*a){20}"):
            with self.subTest(pattern):
                model = self.model()
                path = model / "tokenizer.json"
                tokenizer = json.loads(path.read_text())
                split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
                own = tokenizer["pre_tokenizer"]
                tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, own]}
                path.write_text(json.dumps(tokenizer))
                done = run("tokenize", "--model", model, stdin=b"a" * 3000 + b"!")
                self.assertIn(done.returncode, (0, 2), done.stderr)
                if done.returncode:
                    self.assertRegex(done.stderr, rb"(?m)^stretto: error: .*tokenizer.json")

    def test_merges_as_pairs_and_as_words(self):
        """Newer files have pairs, since a token may hold a space."""
        model = self.model()
        path = model / "tokenizer.json"
        tokenizer = json.loads(path.read_text())
        text = (ROOT / "README.md").read_bytes()
        expected = self.within(MODEL, text)
        pairs = [merge if isinstance(merge, list) else merge.split(" ") for merge in tokenizer["model"]["merges"]]
        for merges in (pairs, [" ".join(pair) for pair in pairs]):
            tokenizer["model"]["merges"] = merges
            path.write_text(json.dumps(tokenizer))
            self.assertEqual(self.within(model, text), expected)

    def test_prompts_with_any_bytes(self):
        """A null, half a character, a surrogate, a byte order mark: never cut short; what is no UTF-8 is U+FFFD."""
        for text in (b"a\0b", b"\xff\xfe", b"\xe4\xb8", b"\xed\xa0\x80", b"\xef\xbb\xbfa", b"\xf4\x90\x80\x80", b""):
            ids = self.good("tokenize", "--model", MODEL, stdin=text).stdout
            back = self.good("tokenize", "--model", MODEL, "--decode", stdin=ids).stdout
            self.assertIn(text.decode(errors="replace").encode(), back)


class MachineTest(ModelCase):
    """Containers, services and other users' settings."""

    GENERATE = ["generate", "--model", MODEL, "--prompt", PROMPT, "--max-tokens", "4", "--tp", "2"]

    def unshared(self, prepare, *args, env=None):
        if os.geteuid():
            self.skipTest("only root mounts")
        command = ["unshare", "--mount", "sh", "-c", f'{prepare} && exec "$@"', "sh"]
        if subprocess.run([*command, "true"], stderr=subprocess.DEVNULL).returncode:
            self.skipTest("this root may not mount")
        return subprocess.run([*command, STRETTO, *args], env={**os.environ, **(env or {})}, cwd=ROOT,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=HANGS)

    def test_little_shared_memory(self):
        """Containers have 64 MB of it, and a program that asks for more dies of SIGBUS in the middle of its work."""
        for size in ("0", "4k", "100k", "1m", "64m"):
            done = self.unshared(f"mount -t tmpfs -o size={size} none /dev/shm", *self.GENERATE, "--launcher",
                                 "processes")
            said = done.stderr.decode()
            self.assertIn(done.returncode, (0, 2, 3), said)
            if done.returncode:
                self.assertRegex(said, r"(?m)^stretto: (error|fault): ")

    def test_no_shared_memory_and_no_proc(self):
        done = self.unshared("mount -t tmpfs -o ro none /dev/shm", *self.GENERATE, "--launcher", "processes")
        self.assertIn(done.returncode, (0, 2, 3), done.stderr)

    def test_file_systems_that_only_can_be_read(self):
        env = {"HOME": "/", "STRETTO_CACHE_DIR": "", "XDG_CACHE_HOME": "", "TMPDIR": str(self.tmp)}
        done = self.unshared("mount -o remount,ro,bind / / 2>/dev/null; true", *self.GENERATE, env=env)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_standard_streams_that_are_closed(self):
        """What is opened first is then the standard input or output, and messages end up in files."""
        expected = self.generate(MODEL).stdout
        for streams in ("<&-", "2>&-", "<&- 2>&-"):
            done = subprocess.run(["sh", "-c", f'exec "$@" {streams}', "sh", STRETTO, "generate", "--model", MODEL,
                                   "--prompt", PROMPT, "--max-tokens", "4"], cwd=ROOT, capture_output=True,
                                  timeout=HANGS)
            self.assertEqual((done.returncode, done.stdout), (0, expected), f"{streams}: {done.stderr}")
        for streams in (">&-", "<&- >&- 2>&-"):
            work = self.tmp / "work"
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            done = subprocess.run(["sh", "-c", f'exec "$@" {streams}', "sh", STRETTO, *self.GENERATE, "--launcher",
                                   "processes"], cwd=work, capture_output=True, timeout=HANGS)
            self.assertEqual((done.returncode != 0, list(work.iterdir())), (True, []), streams)

    def test_one_processor_of_many(self):
        expected = self.good(*self.GENERATE).stdout
        one = {min(os.sched_getaffinity(0))}
        for extra in ((), ("--launcher", "processes")):
            done = subprocess.run([STRETTO, *self.GENERATE, *extra], cwd=ROOT, capture_output=True, timeout=HANGS,
                                  stdin=subprocess.DEVNULL, preexec_fn=lambda: os.sched_setaffinity(0, one))
            self.assertEqual((done.returncode, done.stdout), (0, expected), done.stderr)

    def test_variables_of_other_programs(self):
        """Proxies, threads of OpenMP, languages, a path without anything, a terminal of no size."""
        expected = self.good(*self.GENERATE).stdout
        for env in ({"http_proxy": "http://192.0.2.1:1", "HTTP_PROXY": "http://192.0.2.1:1", "ALL_PROXY": "x"},
                    {"OMP_NUM_THREADS": "0", "OMP_PROC_BIND": "close", "KMP_AFFINITY": "x", "MKL_NUM_THREADS": "-1"},
                    {"LANG": "de_DE.UTF-8", "LC_ALL": "xx_YY", "LANGUAGE": "de"}, {"PATH": ""}, {"TZ": "x/y"},
                    {"COLUMNS": "0", "LINES": "0", "TERM": ""}, {"CUDA_VISIBLE_DEVICES": "-1"},
                    {"MALLOC_PERTURB_": "165"}, {"POSIXLY_CORRECT": "1"}):
            for extra in ((), ("--launcher", "processes")):
                self.assertEqual(self.good(*self.GENERATE, *extra, env=env).stdout, expected, env)

    def test_decimal_commas(self):
        """Where a locale writes 0,5: no number is read or written by it."""
        if not shutil.which("localedef") or not (cli_case.pathlib.Path("/usr/share/i18n/locales/de_DE")).exists():
            self.skipTest("no localedef")
        made = subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", self.tmp / "de_DE.UTF-8"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.assertEqual(made.returncode, 0)
        env = {"LOCPATH": str(self.tmp), "LC_ALL": "de_DE.UTF-8"}
        args = ["generate", "--model", MODEL, "--prompt", PROMPT, "--max-tokens", 8, "--temperature", 0.5, "--seed", 3]
        self.assertEqual(self.good(*args, env=env).stdout, self.good(*args).stdout)


class PageTest(unittest.TestCase):
    def test_the_tests_that_the_page_names(self):
        page = (ROOT / "docs/lab/reports.md").read_text()
        named = set(re.findall(r"`(test_\w+|[A-Z]\w+\.[A-Z]\w+)`", page))
        sources = [*ROOT.glob("tests/*.py"), *ROOT.glob("stretto/**/*_test.cc"), *ROOT.glob("python/tests/*.py")]
        code = "\n".join(source.read_text() for source in sources)
        known = set(re.findall(r"def (test_\w+)", code))
        known |= {f"{suite}.{name}" for suite, name in re.findall(r"TEST(?:_[FP])?\((\w+), (\w+)\)", code)}
        self.assertGreater(len(named), 30)
        self.assertEqual(named - known, set())


if __name__ == "__main__":
    cli_case.main(__doc__)
