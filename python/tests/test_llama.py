"""The recipe of docs/guide/python.md on a Hugging Face Llama: logits and gradients are those of the whole
model."""

import copy
import re

import pytest

import stretto
from stretto import testing

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def recipe(root):
    text = (root / "docs" / "guide" / "python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python torch\n(.*?)```", text, re.S)
    names = {"stretto": stretto}
    exec(next(code for code in blocks if "def split_over_ranks" in code), names)
    return names["split_over_ranks"]


@pytest.mark.parametrize("size, group", [(2, None), (4, "tp")])
def test_a_llama_over_the_ranks(root, rng, size, group):
    import stretto.nn  # for the recipe

    torch.manual_seed(int(rng.integers(1 << 30)))
    split_over_ranks = recipe(root)
    config = transformers.LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_bias=True,
    )
    model = transformers.LlamaForCausalLM(config)
    tokens = torch.randint(0, 40, (2, 7))
    whole = model(tokens, labels=tokens)
    whole.loss.backward()
    wanted = {name: p.grad for name, p in model.named_parameters()}

    def body():
        if group:
            stretto.mesh(dp=2, tp=2)
        mine = copy.deepcopy(model)
        mine.zero_grad()
        split_over_ranks(mine, group)
        made = mine(tokens, labels=tokens)
        made.loss.backward()
        return made.logits.detach(), {name: p.grad for name, p in mine.named_parameters()}

    for r, (logits, grads) in enumerate(testing.run(size, body)):
        torch.testing.assert_close(logits, whole.logits.detach(), rtol=1e-4, atol=1e-4)
        split = 0
        for name, want in wanted.items():
            got = grads[name]
            for dim in range(want.dim()):
                if got.shape[dim] != want.shape[dim]:
                    want, split = want.chunk(2, dim)[r % 2], split + 1
            torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5, msg=lambda m: f"{name}: {m}")
        assert split == 2 * (7 + 3)  # weights of all seven layers, biases of q, k, v
