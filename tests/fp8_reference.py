"""The bundled models as plain NumPy loops in float64, from weights by name: what fp8_weights_test.py compares with."""

import json
import pathlib

import numpy as np

from fp8_checkpoint import BLOCK, dequantized, quantized


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def silu(x):
    return x / (1 + np.exp(-x))


def coarse(x):
    """Rows as e4m3 with a scale for each 128 columns, and back."""
    codes, scales = quantized(x.astype(np.float32), 1, BLOCK)
    return dequantized(codes, scales, 1, BLOCK)


class Model:
    """`activations`: what products are given of a row; coarse() as the fp8 programs, or nothing."""

    def __init__(self, folder, weights, activations=lambda x: x):
        self.c = json.loads((pathlib.Path(folder) / "config.json").read_text())
        self.w, self.seen = weights, activations

    def product(self, x, name):
        return self.seen(x) @ self.w[name + ".weight"].T

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.c["rms_norm_eps"]) * self.w[name + ".weight"]

    def rotated(self, x):
        half = self.c["head_dim"] // 2
        theta = self.c["rope_parameters"]["rope_theta"]
        angles = np.arange(len(x))[:, None, None] * theta ** (-np.arange(half) / half)
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], -1)

    def attention(self, x, at):
        c, rows = self.c, len(x)
        q, k, v = (self.product(x, f"{at}.{p}_proj").reshape(rows, -1, c["head_dim"]) for p in "qkv")
        if f"{at}.q_norm.weight" in self.w:
            q, k = self.norm(q, f"{at}.q_norm"), self.norm(k, f"{at}.k_norm")
        q, k = self.rotated(q), self.rotated(k)
        group = c["num_attention_heads"] // c["num_key_value_heads"]
        k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(c["head_dim"])
        scores = np.where(np.tril(np.ones((rows, rows), bool)), scores, -np.inf)
        return self.product(np.einsum("hqk,khd->qhd", softmax(scores), v).reshape(rows, -1), f"{at}.o_proj")

    def mlp(self, x, at):
        act = silu(self.product(x, f"{at}.gate_proj")) * self.product(x, f"{at}.up_proj")
        return self.product(act, f"{at}.down_proj")

    def experts(self, x, at):
        scores = softmax(x @ self.w[f"{at}.gate.weight"].T)
        chosen = np.argsort(-scores, -1)[:, :self.c["num_experts_per_tok"]]
        shares = np.take_along_axis(scores, chosen, -1)
        shares = shares / shares.sum(-1, keepdims=True)
        out = np.zeros_like(x)
        for expert in range(scores.shape[1]):
            rows, places = np.nonzero(chosen == expert)
            if len(rows):
                out[rows] += shares[rows, places][:, None] * self.mlp(x[rows], f"{at}.experts.{expert}")
        return out

    def logits(self, tokens):
        x = self.w["model.embed_tokens.weight"][tokens]
        for layer in range(self.c["num_hidden_layers"]):
            at = f"model.layers.{layer}"
            x = x + self.attention(self.norm(x, f"{at}.input_layernorm"), f"{at}.self_attn")
            inner = self.experts if f"{at}.mlp.gate.weight" in self.w else self.mlp
            x = x + inner(self.norm(x, f"{at}.post_attention_layernorm"), f"{at}.mlp")
        return self.norm(x, "model.norm") @ self.w["model.embed_tokens.weight"].T

    def nll(self, tokens):
        """Nats of each token but the first."""
        logits = self.logits(tokens)[:-1]
        logits = logits - logits.max(-1, keepdims=True)
        chosen = np.take_along_axis(logits, np.asarray(tokens)[1:, None], -1)[:, 0]
        return np.log(np.exp(logits).sum(-1)) - chosen
