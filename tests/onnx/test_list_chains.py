"""Chains of operators on lists, drawn at random, against onnx's reference evaluator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax

pytest.importorskip("onnx")

from onnx import helper, reference

from tests.onnx.models import model, node, tensor

FLOAT, INT64, BOOL = 1, 7, 9
WEIGHTS: dict[str, Any] = {
    "axis": np.array([0]), "one": np.array([1]), "flat": np.array([-1]), "zero": np.array(0),
    "pair": np.float32([[2, -3]]), "square": np.float32([[1, -1], [0.5, 2]]),
    "least": np.float32(0.2), "pairs": np.array([-1, 2]), "far": np.array([2**62]),
    "last": np.array([-1]), "two_last": np.array([-2]), "three_last": np.array([-3]),
    "step": np.array(1), "less": np.float32([0.8]), "yes": np.array(True),
    "padding": np.array([1, 0, 2, 0]), "scale": np.float32([1, 2]), "twice": np.array([2, 1]),
}  # fmt: skip


class Chain:
    """Nodes of a network under construction, whose tensors have the shape (items, 2)."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.nodes: list[Any] = []

    def add(self, type: str, inputs: str, output_count: int = 1, **attributes: Any) -> str:
        """Add a node, and return the name of its last output."""
        names = [f"{self.prefix}t{len(self.nodes)}_{i}" for i in range(output_count)]
        self.nodes.append(node(type, inputs, " ".join(names), **attributes))
        return names[-1]


def attend(chain: Chain, a: str, b: str) -> str:
    """Attend from the items of a to the items of b."""
    scores = chain.add("MatMul", f"{a} {chain.add('Transpose', b, perm=[1, 0])}")
    return chain.add("MatMul", f"{chain.add('Softmax', scores, axis=1)} {b}")


def choose(chain: Chain, a: str, b: str) -> str:
    """Choose items whose sum is large: a list of a list."""
    total = chain.add("ReduceSum", f"{a} one", keepdims=0)
    return chain.add("Compress", f"{a} {chain.add('Greater', f'{total} least')}", axis=0)


def number(chain: Chain, a: str, b: str) -> str:
    """Add its index to each item."""
    count = chain.add("Squeeze", f"{chain.add('Shape', a, start=0, end=1)} axis")
    indices = chain.add("Cast", chain.add("Range", f"zero {count} step"), to=FLOAT)
    return chain.add("Add", f"{a} {chain.add('Unsqueeze', f'{indices} one')}")


def expand(chain: Chain, a: str, b: str) -> str:
    """Multiply by a constant that is expanded to the number of items."""
    count = chain.add("Shape", a, start=0, end=1)
    shape = chain.add("Concat", f"{count} one", axis=0)
    return chain.add("Mul", f"{a} {chain.add('Expand', f'pair {shape}')}")


def order(chain: Chain, a: str, b: str) -> str:
    """Sort the items by their sums."""
    total = chain.add("ReduceSum", f"{a} one", keepdims=0)
    count = chain.add("Shape", total, start=0, end=1)
    indices = chain.add("TopK", f"{total} {count}", 2, axis=0)
    return chain.add("Gather", f"{a} {indices}", axis=0)


def scatter(chain: Chain, a: str, b: str) -> str:
    """Write zeros to the items of b whose sum is large."""
    total = chain.add("ReduceSum", f"{b} one", keepdims=0)
    places = chain.add("NonZero", chain.add("Greater", f"{total} least"))
    indices = chain.add("Transpose", places, perm=[1, 0])
    zeros = chain.add("Mul", f"{chain.add('GatherND', f'{b} {indices}')} pair")
    return chain.add("ScatterND", f"{b} {indices} {zeros}")


def centre(chain: Chain, a: str, b: str) -> str:
    """Subtract the mean of a from b."""
    return chain.add("Sub", f"{b} {chain.add('ReduceMean', f'{a} axis', keepdims=1)}")


def transposed_pairs(chain: Chain, a: str, b: str) -> str:
    flat = chain.add("Reshape", f"{chain.add('Transpose', a, perm=[1, 0])} flat")
    return chain.add("Reshape", f"{flat} pairs")


def repeat(chain: Chain, count: str, state: str, body: Chain, after: str) -> str:
    """Repeat a body that computes the state `after` from the state "state"."""
    body.add("Identity", "go")
    inputs = [tensor("i", (), INT64), tensor("go", (), BOOL), tensor("state", None)]
    outputs = [tensor(f"{body.prefix}t{len(body.nodes) - 1}_0", None, BOOL), tensor(after, None)]
    graph = helper.make_graph(body.nodes, "body", inputs, outputs)
    return chain.add("Loop", f"{count} yes {state}", body=graph)


def appended(chain: Chain, a: str, b: str, after: Callable[[Chain, str], str]) -> str:
    """Append the items of a to b in a loop.

    `after` adds nodes to the body, and returns the next state. Its arguments are the body and the
    state with an item of a.
    """
    count = chain.add("Squeeze", f"{chain.add('Shape', a, start=0, end=1)} axis")
    body = Chain("body")
    item = body.add("Unsqueeze", f"{body.add('Gather', f'{a} i', axis=0)} axis")
    return repeat(chain, count, b, body, after(body, body.add("Concat", f"state {item}", axis=0)))


def append(chain: Chain, a: str, b: str) -> str:
    """Append the items of a to b in a loop."""
    return appended(chain, a, b, lambda body, state: state)


def append_last(chain: Chain, a: str, b: str) -> str:
    """Append the items of a to b in a loop, and keep the last three items in each iteration."""
    return appended(chain, a, b, lambda body, x: body.add("Slice", f"{x} three_last far axis"))


def append_chosen(chain: Chain, a: str, b: str) -> str:
    """Append the items of a to b in a loop, and drop items with small sums in each iteration."""
    return appended(chain, a, b, lambda body, state: choose(body, state, ""))


def append_large(chain: Chain, a: str, b: str) -> str:
    """Append the items of a to b in a loop, if the sum of the state is large then."""

    def next_state(body: Chain, state: str) -> str:
        is_large = body.add("Greater", f"{body.add('ReduceSum', state, keepdims=0)} least")
        branches: dict[str, Any] = {}
        for name, tensor_name in (("then_branch", state), ("else_branch", "state")):
            result = node("Identity", tensor_name, f"{name}_result")
            output = tensor(f"{name}_result", None)
            branches[name] = helper.make_graph([result], name, [], [output])
        return body.add("If", is_large, **branches)

    return appended(chain, a, b, next_state)


def shrink(chain: Chain, a: str, b: str) -> str:
    """Drop the items whose sum is small, and lower the others, for each item of b."""
    count = chain.add("Squeeze", f"{chain.add('Shape', b, start=0, end=1)} axis")
    body = Chain("body")
    return repeat(chain, count, a, body, body.add("Mul", f"{choose(body, 'state', '')} less"))


STEPS: Sequence[Callable[[Chain, str, str], str]] = (
    attend, choose, number, expand, order, scatter, centre, transposed_pairs, append, append_last,
    append_chosen, append_large, shrink,
    lambda chain, a, b: chain.add("Concat", f"{a} {b}", axis=0),
    lambda chain, a, b: chain.add("Softmax", a, axis=0),
    lambda chain, a, b: chain.add("Slice", f"{a} one far axis"),
    lambda chain, a, b: chain.add("Slice", f"{a} two_last far axis"),
    lambda chain, a, b: chain.add("Slice", f"{a} axis last axis"),
    lambda chain, a, b: chain.add("CumSum", f"{a} zero"),
    lambda chain, a, b: chain.add("MatMul", f"{a} square"),
    lambda chain, a, b: chain.add("Mul", f"{a} {a}"),
    lambda chain, a, b: chain.add("Pad", f"{a} padding"),
    lambda chain, a, b: chain.add("LayerNormalization", f"{a} scale"),
    lambda chain, a, b: chain.add("Tile", f"{a} twice"),
)  # fmt: skip
INPUTS = [
    tensor("x", (5, 2)),
    tensor("v", (4, 2)),
    tensor("m", (5,), BOOL),
    tensor("n", (4,), BOOL),
]


def drawn_network(seed: int) -> Any:
    """Return a network of two to five steps on lists of chosen rows of x and of v."""
    draw = np.random.default_rng(seed)
    chain = Chain()
    tensors = ["x", chain.add("Compress", "x m", axis=0), chain.add("Compress", "v n", axis=0)]
    for _ in range(draw.integers(2, 6)):
        step = STEPS[draw.integers(len(STEPS))]
        a, b = tensors[draw.integers(1, len(tensors))], tensors[draw.integers(len(tensors))]
        tensors.append(step(chain, a, b))
    return model(chain.nodes, INPUTS, [tensor(tensors[-1], None)], WEIGHTS, 18)


def drawn_inputs(seed: int) -> list[list[np.ndarray]]:
    """Return three draws of the inputs. In the last draw the lists have no items."""
    draw = np.random.default_rng(seed)
    rows: list[list[np.ndarray]] = []
    for rate in (0.5, 0.9, 0):
        x, v = (draw.standard_normal((n, 2)).astype(np.float32) for n in (5, 4))
        rows.append([x, v, draw.random(5) < rate, draw.random(4) < rate])
    return rows


def expected(network: Any, row: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return the result of the reference, or None if it fails, as for a maximum of no items."""
    feeds = dict(zip("xvmn", row, strict=True))
    try:
        with np.errstate(all="ignore"):
            return reference.ReferenceEvaluator(network).run(None, feeds)[0]
    except Exception:
        return None


def check(seed: int, gradients: bool) -> None:
    """Compare a network with the reference, for a batch of draws of the inputs."""
    network = drawn_network(seed)
    net = nnef_jax.load(network)
    rows = drawn_inputs(seed)

    def run(*inputs: Any) -> Any:
        return net.apply(net.params, *inputs, capture=net.lengths)

    y, lengths = jax.jit(jax.vmap(run))(*map(np.stack, zip(*rows, strict=True)))
    results = nnef_jax.trim(y, lengths) if lengths else list(y)
    for row, result in zip(rows, results, strict=True):
        array = expected(network, row)
        if array is None:
            continue
        assert result.shape == array.shape, seed
        np.testing.assert_allclose(result, array, rtol=1e-3, atol=1e-3, err_msg=str(seed))
        if gradients and np.isfinite(array).all() and np.abs(array).max(initial=0) < 100:
            check_derivative(run, row, result.shape[0], seed)


def check_derivative(run: Any, row: Sequence[np.ndarray], items: int, seed: int) -> None:
    """Compare a derivative along a direction with a finite difference."""
    x, *inputs = row
    direction = np.random.default_rng(seed).standard_normal(x.shape).astype(np.float32)

    @jax.jit
    def total(x: Any) -> Any:
        y, _ = run(x, *inputs)
        return jnp.sin(y[:items]).sum()

    slope = jnp.sum(jax.grad(total)(x) * direction)
    assert np.isfinite(slope), seed
    size = 1e-3
    difference = (total(x + size * direction) - total(x - size * direction)) / (2 * size)
    # A mask of a list may change between the two points. Then the difference is no derivative.
    if abs(slope - difference) > 0.05 * (1 + abs(slope)):
        size = 1e-4
        difference = (total(x + size * direction) - total(x - size * direction)) / (2 * size)
    assert abs(slope - difference) <= 0.2 * (1 + abs(slope)), seed


@pytest.mark.parametrize("block", range(6))
def test_chains(block: int) -> None:
    for seed in range(5 * block, 5 * block + 5):
        check(seed, gradients=False)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(40))
def test_many_chains(block: int) -> None:
    for seed in range(100 + 50 * block, 150 + 50 * block):
        check(seed, gradients=True)
