"""Measures how many tokens a second nnef_jax, onnxruntime and torch decode with a cache.

    python -m benchmarks.gpt_step [--layers 12] [--positions 128,900] [--tokens 16]

The network has the shape of GPT-2 (124 million parameters), batch 1 and random weights. Each call
reads one token and computes the logits of the next token. The engines store the keys and values of
earlier tokens in different ways. nnef_jax has states with 1024 positions, which it updates in place
(`donate_state`). torch also updates caches in place, and attends to a slice of them. onnxruntime
concatenates the past and the new token in each call.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper

from benchmarks import timing
from benchmarks.builders.onnx_builder import OnnxBuilder
from benchmarks.builders.torch_builder import TorchBuilder
from benchmarks.engines import onnx_session
from benchmarks.networks.gpt import HEADS, LETTERS, PLACES, SIZE, GptNnefBuilder, network

REST = 0.02  # seconds; by then the threads of the previous engine no longer spin


class _Onnx(OnnxBuilder):
    """Builds the ONNX model, which takes past keys and values and returns them extended."""

    def __init__(self) -> None:
        super().__init__()
        self.integers: list[str] = []
        self.pasts: list[str] = []
        self.presents: list[str] = []

    def read(self, table: str, name: str) -> str:
        """Look up the row of a table whose index is an input."""
        self.integers.append(name)
        return self._add("Gather", [table, name], axis=0, rank=3)

    def attend(self, name: str, q: str, k: str, v: str) -> str:
        """Concatenate the past and the token's keys and values, and attend to all of them."""
        joined: list[str] = []
        for kind, x in (("keys", k), ("values", v)):
            past = f"{name}.{kind}"
            self._ranks[past] = 4
            joined.append(self.concat([past, x], 2))
            self.pasts.append(past)
        self.presents += joined
        keys, values = joined
        return self.spelled_attention(q, keys, values, SIZE, None)

    def logits(self, x: str, tokens: str) -> str:
        """Return the logit of each token as the next token."""
        return self.matmul(x, self.transpose(tokens, (1, 0)))

    def model(self, output: str) -> Any:
        """Return the model whose outputs are `output` and the extended keys and values."""
        typed = helper.make_tensor_value_info
        shape = [1, HEADS, None, SIZE]
        inputs = [typed(name, TensorProto.INT64, [1, 1]) for name in self.integers]
        inputs += [typed(name, TensorProto.FLOAT, shape) for name in self.pasts]
        outputs = [typed(output, TensorProto.FLOAT, [1, 1, LETTERS])]
        outputs += [typed(name, TensorProto.FLOAT, shape) for name in self.presents]
        graph = helper.make_graph(self._nodes, "network", inputs, outputs, self._initialisers)
        opset = helper.make_opsetid("", 20)
        return helper.make_model(graph, opset_imports=[opset], ir_version=10)


class _Torch(TorchBuilder):
    """Builds the torch module, which updates its caches of keys and values in place."""

    caches: dict[str, torch.Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.caches = {}

    def read(self, table: Any, name: str) -> Any:
        """Look up the row of a table whose index is an input."""
        return self._call(F.embedding, self.declare(name, (1, 1)), table)

    def attend(self, name: str, q: Any, k: Any, v: Any) -> Any:
        """Write the token's key and value to its position, and attend to all positions up to it."""
        for kind in ("keys", "values"):
            self.caches[f"{name}.{kind}"] = torch.zeros(1, HEADS, PLACES, SIZE)
        keys, values = (self.caches[f"{name}.{kind}"] for kind in ("keys", "values"))

        def step(q: Any, k: Any, v: Any) -> Any:
            stop = self.place + 1
            keys[:, :, self.place : stop], values[:, :, self.place : stop] = k, v
            return F.scaled_dot_product_attention(q, keys[:, :, :stop], values[:, :, :stop])

        return self._call(step, q, k, v)

    place = 0

    def logits(self, x: Any, tokens: Any) -> Any:
        """Return the logit of each token as the next token."""
        return self._call(F.linear, x, tokens)


Step = Callable[[int, int], np.ndarray[Any, Any]]  # takes a token and its position, returns logits


def _by_nnef_jax(
    path: Path, past: np.ndarray[Any, Any], states: dict[str, str], **options: Any
) -> Step:
    import jax.numpy as jnp

    import nnef_jax

    model = nnef_jax.load(path, state=states, donate_state=True, **options)
    state = {name: jnp.asarray(past, x.dtype) for name, x in model.init_state().items()}

    def step(token: int, place: int) -> np.ndarray[Any, Any]:
        nonlocal state
        inputs = (np.array([[x]], np.int32) for x in (token, place))
        logits, state = model.step(state, *inputs)
        return np.asarray(logits)

    return step


def _by_onnxruntime(path: Path, past: np.ndarray[Any, Any], builder: _Onnx, first: int) -> Step:
    import onnxruntime

    session = onnx_session(path)
    value = onnxruntime.OrtValue.ortvalue_from_numpy
    found = [value(past[None, :, :first].copy()) for _ in builder.pasts]
    names = [output.name for output in session.get_outputs()]

    def step(token: int, place: int) -> np.ndarray[Any, Any]:
        nonlocal found
        binding = session.io_binding()
        for name, x in zip(builder.integers, (token, place), strict=True):
            binding.bind_ortvalue_input(name, value(np.array([[x]], np.int64)))
        for name, x in zip(builder.pasts, found, strict=True):
            binding.bind_ortvalue_input(name, x)
        for name in names:
            binding.bind_output(name)
        session.run_with_iobinding(binding)
        logits, *found = binding.get_outputs()
        return logits.numpy()

    return step


def _by_torch(builder: _Torch, module: Any, past: np.ndarray[Any, Any]) -> Step:
    for cache in builder.caches.values():
        cache.copy_(torch.from_numpy(past)[None])

    def step(token: int, place: int) -> np.ndarray[Any, Any]:
        builder.place = place
        with torch.inference_mode():
            return module(torch.tensor([[token]]), torch.tensor([[place]])).numpy()

    return step


def _generated(step: Step, place: int, count: int) -> tuple[list[int], list[float]]:
    """Decode `count` tokens from a position on. Return the tokens, and the seconds for each."""
    token, tokens, seconds = 1, list[int](), list[float]()
    for i in range(count):
        start = time.perf_counter()
        token = int(step(token, place + i).argmax())
        seconds.append(time.perf_counter() - start)
        tokens.append(token)
    return tokens, seconds


def main(argv: Sequence[str] | None = None) -> None:
    """Print how many tokens a second each engine decodes, from each start position on."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--positions", default="128,900")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args(argv)
    positions = [int(x) for x in given.positions.split(",")]
    past = np.random.default_rng(1).standard_normal((HEADS, PLACES, SIZE)).astype(np.float32)
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
        nnef, onnx = Path(folder, "gpt"), Path(folder, "gpt.onnx")
        builder = GptNnefBuilder()
        logits = network(builder, given.layers)
        builder.write(nnef, ", ".join([logits, *builder.states.values()]))
        of_onnx, of_torch = _Onnx(), _Torch()
        onnx.write_bytes(of_onnx.model(network(of_onnx, given.layers)).SerializeToString())
        module = of_torch.module(network(of_torch, given.layers))
        for first in positions:
            steps = {
                "nnef_jax": _by_nnef_jax(nnef, past, builder.states),
                "bfloat16": _by_nnef_jax(nnef, past, builder.states, dtype="bfloat16"),
                "onnxruntime": _by_onnxruntime(onnx, past, of_onnx, first),
                "torch": _by_torch(of_torch, module, past),
            }
            seconds: dict[str, list[float]] = {name: [] for name in steps}
            logits = {name: step(1, first) for name, step in steps.items()}
            timing.check_agreement(logits, {"bfloat16": timing.OF_BFLOAT16})
            for turn in range(given.rounds):
                for name, step in steps.items():
                    time.sleep(REST)
                    start = first + 1 + turn * given.tokens
                    seconds[name] += _generated(step, start, given.tokens)[1][1:]
            speeds = (f"{name} {1 / median(taken):.1f}" for name, taken in seconds.items())
            print(f"tokens a second from place {first} on: {', '.join(speeds)}", flush=True)


if __name__ == "__main__":
    main()
