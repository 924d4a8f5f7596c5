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

    def test_other_vocabularies_are_named(self):
        model = self.model()
        (model / "tokenizer.json").rename(model / "tokenizer.model")
        self.refused_model(model, "tokenizer.json: is missing; 'tokenizer.model' is not read")


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
