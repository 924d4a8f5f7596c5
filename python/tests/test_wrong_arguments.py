"""Every public function with arguments that are wrong, drawn by lot: each raises one of the package's
errors, in words that the user has written, on every rank, and the next call works."""

import re

import numpy as np
import pytest

import stretto
from stretto import testing
from wrong_arguments import ALONE, COLLECTIVES, INTERNAL, PROGRAMS, WORDS, of_no_kind, replaced, valid

try:
    import torch
except ImportError:
    torch = None

FORMS = ["numpy"] + (["torch", "gradient"] if torch is not None else [])
X = np.ones((4, 4), np.float32)
DRAWS = 60  # of each function, and each number of ranks


def function(name):
    return getattr(stretto, name)


def called(name, arguments):
    """None, or what the call said that it refused."""
    try:
        function(name)(**arguments)
    except stretto.Error as error:
        return str(error)
    return None


def needing_gradients(form, arguments):
    """The argument that requires a gradient, which not every operator has."""
    return [next(iter(arguments))] if form == "gradient" else []


def check_words(text, name, wrong):
    """It names the call and what was wrong of it, and nothing that the user has not called."""
    assert name in text, text
    told = re.search(r"shapes|dimension|differ|split|ranks|rows|tokens|experts|heads", text)
    assert told or any(argument in text for argument in wrong), (text, wrong)
    check_no_internals(text, name)


def check_no_internals(text, *names):
    for pattern in INTERNAL + (PROGRAMS if names else []):
        assert not re.search(pattern, text), (pattern, text)
    if not names:
        return
    others = set(stretto.ops.__all__) - set(names) - WORDS
    for other in others:  # "name()" is advice
        assert not re.search(rf"\b{other}\b(?!\()", text), (other, text)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", COLLECTIVES + ALONE)
def test_arguments_of_the_wrong_kind(rng, name, form):
    seed = int(rng.integers(1 << 30))

    def body():
        draw = np.random.default_rng(seed)
        for _ in range(DRAWS):
            arguments = valid(name, 1, 4, draw, form)
            wrong = replaced(name, arguments, draw) + needing_gradients(form, arguments)
            text = called(name, arguments)
            if text is not None:
                check_words(text, name, wrong)
            np.testing.assert_array_equal(stretto.all_reduce(X), X)

    testing.run(1, body, timeout=60)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", COLLECTIVES)
def test_arguments_that_are_wrong_on_one_rank(rng, name, form):
    seed = int(rng.integers(1 << 30))

    def body():
        draw, texts = np.random.default_rng(seed), []
        for _ in range(DRAWS):
            arguments, bad = (valid(name, 2, 4, draw, form) for _ in range(2))
            wrong = replaced(name, bad, draw, group=False) + needing_gradients(form, arguments)
            text = called(name, bad if stretto.rank() == 1 else arguments)
            texts.append((text, wrong))
            np.testing.assert_array_equal(stretto.all_reduce(X), 2 * X)
        return texts

    for (one, wrong), (other, _) in zip(*testing.run(2, body, timeout=60)):
        assert (one is None) == (other is None), (wrong, one, other)
        if one is not None:
            check_words(one, name, wrong)
            check_words(other, name, wrong)


@pytest.mark.parametrize("travel", [False, True])
def test_a_program_of_another_name(travel):
    """What the program refuses is told of the call, on the rank that has made it and on the other."""
    x = np.ones((4, 2, 8), np.float32)

    def body():
        window = -1 if stretto.rank() == 1 else 2
        text = called("ring_attention", dict(query=x, key=x, value=x, window=window, queries_travel=travel))
        np.testing.assert_array_equal(stretto.all_reduce(X), 2 * X)
        return text

    for text in testing.run(2, body, timeout=60):
        check_words(text, "ring_attention", ["window"])


@pytest.mark.parametrize("name", COLLECTIVES)
def test_ranks_that_disagree(rng, name):
    """Each with arguments that are right by themselves."""
    seed = int(rng.integers(1 << 30))

    def body():
        texts, rank = [], stretto.rank()
        for rows in (4, 8):
            draw = np.random.default_rng(seed + rows)
            texts.append(called(name, valid(name, 2, rows if rank else 12 - rows, draw, "numpy")))
            np.testing.assert_array_equal(stretto.all_reduce(X), 2 * X)
        return texts

    told = testing.run(2, body, timeout=60)
    assert told[0] == told[1] and all(told[0]), told
    for text in told[0]:
        assert re.search(rf"differ between ranks: rank 0 called {name}\(.*rank 1 called {name}\(", text)
        check_no_internals(text, name)


def call_of(name, value):
    """A function of the package, other than an operator, with an argument of a wrong kind."""
    program = stretto.operator("gemm", ranks=1, m=4, n=4, k=4, target="cpu")
    calls = {
        "operator": [
            lambda: stretto.operator(value),
            lambda: stretto.operator("gemm", ranks=value),
            lambda: stretto.operator("gemm", m=value),
            lambda: stretto.operator("gemm", dtype=value),
            lambda: stretto.operator("gemm", target=value),
        ],
        "choose": [
            lambda: stretto.choose(value),
            lambda: stretto.choose("gemm", ranks=value),
            lambda: stretto.choose("gemm", n=value),
            lambda: stretto.choose("gemm", dtype=value),
        ],
        "explain": [
            lambda: stretto.explain(value),
            lambda: stretto.explain("gemm", after=value),
            lambda: stretto.explain(program, emit=value),
        ],
        "prove": [lambda: stretto.prove(value)],
        "predict": [lambda: stretto.predict(value), lambda: stretto.predict(program, value)],
        "Program.parse": [lambda: stretto.Program.parse(value)],
        "gemm": [
            lambda: program(value, X),
            lambda: program(X, value),
            lambda: program(X, X, m=value),
            lambda: program(X, X, value),
        ],
        "load": [lambda: stretto.load(value)],
        "trace": [lambda: stretto.trace(value).__enter__()],
        "symm_mem.empty": [
            lambda: stretto.symm_mem.empty(value),
            lambda: stretto.symm_mem.empty(4, dtype=value),
            lambda: stretto.symm_mem.empty(4, device=value),
            lambda: stretto.symm_mem.empty(4, name=value),
        ],
        "new_group": [lambda: stretto.new_group(value), lambda: stretto.new_group([0], name=value)],
        "mesh": [lambda: stretto.mesh(tp=value)],
        "zigzag": [lambda: stretto.zigzag(value), lambda: stretto.zigzag(4, rank=value)],
        "init": [lambda: stretto.init(value), lambda: stretto.init(timeout=value)],
        "group": [
            lambda: stretto.rank(value),
            lambda: stretto.world_size(value),
            lambda: stretto.barrier(value),
            lambda: stretto.recover(value),
            lambda: stretto.finalize(value),
        ],
    }
    return calls[name]


@pytest.mark.parametrize("name, options", [
    ("all_gather_matmul", {}), ("all_gather_matmul", {"gather_dim": 1}), ("matmul_reduce_scatter", {}),
    ("matmul_reduce_scatter", {"scatter_dim": 1}), ("matmul_all_reduce", {})])
@pytest.mark.parametrize("of_a", [False, True])
def test_products_of_types_that_pytorch_refuses(name, options, of_a):
    """With a gradient the product is PyTorch's, and so are the words of what it refuses."""
    torch = pytest.importorskip("torch")

    def body():
        a, b = torch.randn(4, 6, requires_grad=True), torch.randn(12 if options.get("gather_dim") else 6, 8)
        a, b = (a.detach().to(torch.complex64).requires_grad_(), b) if of_a else (a, b.to(torch.complex64))
        with pytest.raises(stretto.UserError) as refused:
            function(name)(a, b, **options)
        return str(refused.value)

    for text in testing.run(2, body, timeout=60):
        check_no_internals(text, name)


OTHERS = (
    "operator choose explain prove predict Program.parse gemm load trace symm_mem.empty new_group mesh "
    "zigzag init group"
).split()


@pytest.mark.parametrize("name", OTHERS)
def test_functions_that_are_no_operators(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def body():
        group = stretto._world.group_of()
        for value in of_no_kind():
            for call in call_of(name, value):
                try:
                    call()
                except stretto.UserError as error:
                    check_no_internals(str(error))
                    text = str(error)
                    assert name.rpartition(".")[2] in text or repr(value) in text, text
                if group.closed or stretto._world._member().groups.get("") is not group:
                    return  # None leaves all worlds
        np.testing.assert_array_equal(stretto.all_reduce(X), X)

    testing.run(1, body, timeout=60)
