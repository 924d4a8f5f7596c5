"""Model directories as users have them: half downloaded, edited, linked together. Usage: cli_models_test.py
PATH_OF_STRETTO [unittest arguments], from the root of the repository."""

import json
import os
import pathlib
import shutil
import struct

import cli_case
from cli_case import MODEL, PROMPT, CliCase

JSON_FILES = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1903984\n"


def tensors_of(path):
    """name -> (dtype, shape, bytes)"""
    data = path.read_bytes()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:begin])
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], data[begin + t["data_offsets"][0]:begin + t["data_offsets"][1]])
            for name, t in header.items()}


def write_tensors(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def widened(data):
    """bfloat16 as float32"""
    return b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))


class ModelCase(CliCase):
    def model(self, name="model", **changes):
        """A copy of the small bundled model; `config={...}` sets fields of config.json, and so on."""
        folder = self.tmp / name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(MODEL, folder)
        for file, fields in changes.items():
            path = folder / f"{file}.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
        return folder

    def generate(self, model):
        return self.good("generate", "--model", model, "--prompt", PROMPT, "--max-tokens", 4)

    def refused_model(self, model, *says):
        return self.refused("generate", "--model", model, "--prompt", PROMPT, says=says)

    def warned(self, model, *parts):
        """Loads, and tells one contradiction, on standard error, that names both tellings."""
        done = self.generate(model)
        text = done.stderr.decode()
        self.assertEqual((text.count("\n"), text.startswith("stretto: warning: ")), (1, True), text)
        for part in parts:
            self.assertIn(part, text)
        return done

    def silent(self, model):
        done = self.generate(model)
        self.assertEqual(done.stderr, b"")
        return done


class FilesTest(ModelCase):
    def test_bundled_models_are_loaded_without_a_word(self):
        for model in pathlib.Path(MODEL).parent.iterdir():
            if model.is_dir():
                self.silent(model)

    def test_pipes_are_not_waited_for(self):
        for name in [*JSON_FILES, "model.safetensors"]:
            model = self.model()
            (model / name).unlink()
            os.mkfifo(model / name)
            self.refused_model(model, f"{name}: is not a regular file")

    def test_links_to_nothing_are_not_absent(self):
        """As in a snapshot of the hub's cache whose blobs are gone."""
        for name in [*JSON_FILES, "model.safetensors"]:
            model = self.model()
            (model / name).unlink()
            (model / name).symlink_to("../../blobs/0123")
            self.refused_model(model, f"{name}: is a link to '../../blobs/0123', which is missing")

    def test_lfs_pointers_are_named(self):
        """As huggingface/transformers#27923 and many more."""
        for name in [*JSON_FILES, "model.safetensors"]:
            model = self.model()
            (model / name).write_bytes(LFS_POINTER)
            self.refused_model(model, name, "Git LFS pointer")

    def test_empty_files_are_refused(self):
        for name in [*JSON_FILES, "model.safetensors"]:
            model = self.model()
            (model / name).write_bytes(b"")
            self.refused_model(model, name)

    def test_folders_of_the_hubs_cache(self):
        blobs = self.model("models--a--b/blobs")
        snapshot = self.tmp / "models--a--b/snapshots/0123"
        snapshot.mkdir(parents=True)
        for file in blobs.iterdir():
            (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
        self.silent(snapshot)
        self.refused_model(self.tmp / "models--a--b", "hub's cache", "snapshots")

    def test_names_of_directories(self):
        for name in ("with space", "üñí→", "a'b\"c", "a\nb"):
            self.silent(self.model(name))
            self.silent(f"{self.tmp / name}/")
        self.refused_model("", "is empty")
        self.refused_model("meta-llama/Llama-3-8B", "meta-llama/Llama-3-8B: is not a readable directory")
        self.refused("tokenize", "--model", "meta-llama/Llama-3-8B", says="is not a readable directory")

    def test_numbers_that_only_python_writes(self):
        """As ai-dynamo/dynamo#2882: harmless where nobody reads them."""
        infinite = {"time_step_limit": [0.0, float("inf")], "x": float("nan")}
        self.silent(self.model(config=infinite, generation_config=infinite, tokenizer_config=infinite))
        self.refused_model(self.model(config={"rms_norm_eps": float("nan")}), "rms_norm_eps: need a number", "'NaN'")

    def test_other_encodings_are_named(self):
        model = self.model()
        (model / "config.json").write_text((model / "config.json").read_text(), "utf-16")
        self.refused_model(model, "config.json: not valid JSON: UTF-16, need UTF-8")

    def test_other_vocabularies_are_named(self):
        model = self.model()
        (model / "tokenizer.json").rename(model / "tokenizer.model")
        self.refused_model(model, "tokenizer.json: is missing; 'tokenizer.model' is not read")


class WeightsTest(ModelCase):
    def sharded(self, keep=lambda name, shard: True, more=()):
        """The small model in two shards; `keep` says what the index lists, `more` what the second has besides."""
        model = self.model()
        tensors = tensors_of(model / "model.safetensors")
        (model / "model.safetensors").unlink()
        names, index = sorted(tensors), {}
        for shard, part in ((1, names[:8]), (2, names[8:] + list(more))):
            file = f"model-{shard:05}-of-00002.safetensors"
            write_tensors(model / file, {name: tensors[name] for name in part})
            index.update({name: file for name in part if keep(name, shard) and name not in index})
        (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
        return model

    def test_what_an_index_does_not_list_is_taken(self):
        expected = self.generate(MODEL).stdout
        self.assertEqual(self.silent(self.sharded()).stdout, expected)
        done = self.warned(self.sharded(lambda name, shard: name != "model.norm.weight"),
                           "does not list 'model.norm.weight'", "it is taken")
        self.assertEqual(done.stdout, expected)
        done = self.warned(self.sharded(lambda name, shard: "norm" not in name), "and 4 more weights")
        self.assertEqual(done.stdout, expected)
        self.refused_model(self.sharded(lambda name, shard: shard == 1), "q_proj.weight': missing")

    def test_tensors_in_two_shards(self):
        name = "model.embed_tokens.weight"
        model = self.sharded(more=[name])
        self.assertEqual(self.silent(model).stdout, self.generate(MODEL).stdout)
        second = model / "model-00002-of-00002.safetensors"
        tensors = tensors_of(second)
        dtype, shape, data = tensors[name]
        write_tensors(second, {**tensors, name: (dtype, shape, data[::-1])})
        self.refused_model(model, f"tensor '{name}': is also in", "differs")

    def test_shards_that_are_not_there(self):
        model = self.sharded()
        shard = model / "model-00002-of-00002.safetensors"
        shard.unlink()
        self.refused_model(model, "shard 'model-00002-of-00002.safetensors' is missing")
        shard.symlink_to("../../blobs/0123")
        self.refused_model(model, "is a link to '../../blobs/0123', which is missing")

    def test_adapters_are_not_applied(self):
        model = self.model()
        (model / "adapter_config.json").write_text("{}")
        self.warned(model, "adapter_config.json", "not applied")


class TokensTest(ModelCase):
    """Both files that speak of tokens, and the vocabulary of the model."""

    FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}

    def with_token(self, token_id=4096, **changes):
        model = self.model()
        path = model / "tokenizer.json"
        tokenizer = json.loads(path.read_text())
        tokenizer["added_tokens"].append({"id": token_id, "content": "<pad>", **self.FLAGS, **changes})
        path.write_text(json.dumps(tokenizer))
        return model

    def ids(self, model, text):
        done = self.good("tokenize", "--model", model, stdin=text)
        return [int(word) for word in done.stdout.split()], done.stderr.decode()

    def test_tokens_beyond_the_vocabulary(self):
        """As huggingface/transformers#24899, where a token to pad with was added: only texts that have such
        a token cannot be used."""
        model = self.with_token()
        self.assertEqual(self.ids(model, b"<pad>")[0][-1], 4096)
        done = self.warned(model, "vocab_size is 4096", "has ids up to 4096")
        self.assertEqual(done.stdout, self.generate(MODEL).stdout)
        document = self.tmp / "document"
        document.write_text("a<pad>b")
        for command in (["generate", "--prompt", "a<pad>b"], ["score", "--file", document]):
            self.refused(*command, "--model", model, says="token 4096 ('<pad>') is outside the vocabulary of 4096",
                         lines=2)

    def test_begin_and_end(self):
        """As huggingface/transformers#23833, #47988: the template of tokenizer.json counts, and the flag is told."""
        for flags, said in (({"add_bos_token": True, "add_eos_token": False}, None),
                            ({"add_bos_token": False}, "puts the '<s>'"), ({"add_eos_token": True}, "puts no '</s>'"),
                            ({"add_bos_token": False, "bos_token": None}, None)):
            ids, text = self.ids(self.model(tokenizer_config=flags), b"a")
            self.assertEqual(ids, [0, 66])
            self.assertEqual(text.count("warning"), 1 if said else 0, text)
            self.assertIn(said or "", text)

    def test_tokens_that_both_files_name(self):
        entry = {"content": "<s>", **self.FLAGS}
        self.silent(self.model(tokenizer_config={"added_tokens_decoder": {"0": entry}}))
        for decoder, said in (({"0": {**entry, "lstrip": True}}, "added_tokens_decoder.0.lstrip is true"),
                              ({"0": {**entry, "content": "<x>"}}, "0 is '<x>', but"),
                              ({"9": entry}, "no added token of that id"), ({"zero": entry}, "no token with its id"),
                              ({"8": entry, "9": entry, "0": entry}, "and 1 more")):
            self.warned(self.model(tokenizer_config={"added_tokens_decoder": decoder}), said, "the latter is taken")
        self.warned(self.model(tokenizer_config={"pad_token": "<pad>"}), "pad_token is '<pad>'", "no such token")

    def test_tokens_of_special_tokens_map(self):
        model = self.model()
        path = model / "special_tokens_map.json"
        for eos, differs in (("</s>", False), ({"content": "</s>", **self.FLAGS}, False), ("<pad>", True)):
            path.write_text(json.dumps({"eos_token": eos, "additional_special_tokens": ["<x>"]}))
            if differs:
                self.warned(model, "special_tokens_map.json: eos_token is '<pad>'", "the first is taken")
            else:
                self.silent(model)
        path.write_text("{")
        self.refused_model(model, "special_tokens_map.json")
        path.write_text(json.dumps({"eos_token": 3}))
        self.refused_model(model, "special_tokens_map.json", "eos_token")

    def test_a_token_that_is_listed_twice(self):
        expected = self.ids(MODEL, b"</s>a")
        for entry, fits in (({"special": True}, True), ({"special": False}, False)):
            model = self.with_token(1, content="</s>", **entry)
            if fits:
                self.assertEqual(self.ids(model, b"</s>a"), expected)
            else:
                self.refused_model(model, "added_tokens[2]", "listed twice, and differently")


class RotaryTest(ModelCase):
    def test_contradictions_and_unused_fields(self):
        linear = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
        taken = self.generate(self.model(config={"rope_parameters": linear})).stdout
        done = self.warned(self.model(config={"rope_scaling": linear}), "rope_scaling.rope_type is linear",
                           "rope_parameters.rope_type is default")
        self.assertEqual(done.stdout, taken)
        self.warned(self.model(config={"rope_parameters": {"factor": 4.0}}), "'factor' is 4.0", "does not use")


class SpecialTokensTest(ModelCase):
    def test_of_three_files(self):
        self.warned(self.model(config={"eos_token_id": 2}), "generation_config.json: eos_token_id is [1]",
                    "config.json: eos_token_id is [2]")
        self.warned(self.model(tokenizer_config={"bos_token": "</s>"}), "bos_token_id is 0", "the id of bos_token is 1")
        self.silent(self.model(config={"eos_token_id": [1, 2]}, generation_config={"eos_token_id": [1, 2]}))
        self.silent(self.model(config={"eos_token_id": None}))

    def test_tied_embeddings_beside_another_head(self):
        model = self.model()
        tensors = tensors_of(model / "model.safetensors")
        dtype, shape, data = tensors["model.embed_tokens.weight"]
        head = b"".join(data[i:i + 2 * shape[1]] for i in range(len(data) - 2 * shape[1], -1, -2 * shape[1]))
        write_tensors(model / "model.safetensors", {**tensors, "lm_head.weight": (dtype, shape, head)})
        told = self.warned(model, "tie_word_embeddings is true", "the tensor is taken").stdout
        untied = self.model("untied", config={"tie_word_embeddings": False})
        shutil.copy(model / "model.safetensors", untied)
        self.assertEqual(self.silent(untied).stdout, told)


class DtypeTest(ModelCase):
    def test_of_config_and_tensors(self):
        """As huggingface/transformers#34743: the config's word counts, and the difference is told."""
        for dtype in ("float32", "float16"):
            self.warned(self.model(config={"dtype": dtype}), f"config.json: dtype is {dtype}",
                        "dtype of most weights is bfloat16", "the first is taken")
        self.warned(self.model(config={"torch_dtype": "float32"}), "dtype is bfloat16", "torch_dtype is float32")
        self.silent(self.model(config={"dtype": None}))
        model = self.model()
        tensors = tensors_of(model / "model.safetensors")
        wide = {name: ("F32", shape, widened(data)) for name, (_, shape, data) in tensors.items()}
        write_tensors(model / "model.safetensors", wide)
        self.warned(model, "dtype is bfloat16", "dtype of most weights is float32")
        norms = {name: wide[name] if "norm" in name else tensors[name] for name in tensors}
        write_tensors(model / "model.safetensors", norms)
        self.silent(model)


if __name__ == "__main__":
    cli_case.main(__doc__)
