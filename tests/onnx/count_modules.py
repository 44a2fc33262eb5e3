"""Small modules of torch whose shapes depend on values, as both of its exporters write them.

    python -m tests.onnx.count_modules    # where torch (2.13), onnxscript and onnxruntime are

writes `counts/`: a file for each module and exporter, and `results.npz` with the outputs and
gradients that torch computes, for `CASES` draws of the inputs. The mask of the last draw has no
true item. The program prints the files that onnxruntime computes otherwise than torch.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent / "counts"
RESULTS = FOLDER / "results.npz"
CASES = 3
EXPORTERS = ("dynamo", "script")


def modules() -> dict[str, tuple[Callable[..., Any], Sequence[str]]]:
    """Return functions of tensors, each with the names of its inputs in `draw`."""
    import torch
    from torch.nn import functional as F

    def mask_elements(x, v):
        y = x.clone()
        y[x > 0.3] = 0
        return y

    def mask_values(x, v):
        y = x.clone()
        y[x > 0.3] = v[x > 0.3]
        return y

    def mask_rows(x, m):
        y = x.clone()
        y[m] = 0
        return y

    def row_values(x, v, m):
        y = x.clone()
        y[m] = v[m]
        return y

    def index_add(x, v, m):
        rows = m.nonzero()[:, 0]
        return x.index_add(0, rows, v[rows])

    def masked_scatter(x, v):
        return x.masked_scatter(x > 0.3, v)

    def product(x, w, m):
        return x[m] @ w

    def gram(x, m):
        y = x[m]
        return y.T @ y

    def softmax(x, m):
        y = torch.zeros_like(x)
        y[m] = torch.softmax(x[m], 0)
        return y

    def sort(x, m):
        return torch.sort(x[:, 0][m], descending=True)[0]

    def concat(x, v, m):
        return torch.cat([x[m], v, v[m]])

    def nested(x, m):
        y = x[:, 0][m]
        return y[y > 0]

    def number(x, m):
        return x.sum(0) / m.nonzero().shape[0]

    def slices(x, ids):
        total = torch.zeros(4)
        for i in range(3):
            total = total + (i + 1) * x[ids == i].sum(0)
        return total

    def best(x, m):
        scores = torch.where(m, x[:, 0], torch.full_like(x[:, 0], -9.0))
        is_chosen = scores > -9
        return x[is_chosen][torch.argsort(scores[is_chosen], descending=True)]

    def dropped_tokens(x, w, m):
        tokens = x[m]
        q, k, v = (tokens @ w, tokens, tokens * 2)
        attended = torch.softmax(q @ k.T / 2, -1) @ v
        y = x.clone()
        y[m] = attended
        return y

    def experts(x, w, ids):
        y = torch.zeros_like(x)
        for i in range(3):
            rows = torch.where(ids == i)[0]
            y.index_add_(0, rows, F.gelu(x[rows] @ (w * (i + 1))))
        return y

    def unique(ids):
        return torch.unique(ids, return_counts=True)

    def norm(x, m):
        return F.layer_norm(x[m], (4,)).mean(0)

    def messages(x, ids, m):
        source, target = ids[m], ids.flip(0)[m]
        return torch.zeros_like(x).index_add(0, target, x[source])

    def running(x, m):
        return x[m].cumsum(0)

    def attention(x, m):
        y = x[m][None]
        return F.scaled_dot_product_attention(x[None], y, y)[0]

    def numbered(x, m):
        y = x[m]
        return y * torch.arange(y.shape[0])[:, None]

    def flat(x, m):
        return x[m].reshape(-1)

    def tail(x, m):
        return x[m][1:]

    def ones(x, m):
        y = x[m]
        return torch.cat([y, torch.ones(y.shape[0], 1)], 1)

    inputs = {
        "mask_elements": "x v", "mask_values": "x v", "mask_rows": "x m", "row_values": "x v m",
        "index_add": "x v m", "masked_scatter": "x v", "product": "x w m", "gram": "x m",
        "softmax": "x m", "sort": "x m", "concat": "x v m", "nested": "x m", "number": "x m",
        "slices": "x ids", "best": "x m", "dropped_tokens": "x w m", "experts": "x w ids",
        "unique": "ids", "norm": "x m", "messages": "x ids m", "running": "x m",
        "attention": "x m", "numbered": "x m", "flat": "x m", "tail": "x m", "ones": "x m",
    }  # fmt: skip
    functions = locals()
    return {name: (functions[name], names.split()) for name, names in inputs.items()}


def draw(case: int) -> dict[str, np.ndarray]:
    """Return inputs by name. The last case has no true item in its mask."""
    rng = np.random.default_rng(case)
    x, v = (rng.standard_normal((6, 4)).astype(np.float32) for _ in range(2))
    mask = rng.random(6) < 0.5
    mask[case % 6] = True
    if case == CASES - 1:
        mask[:] = False
    w = rng.standard_normal((4, 4)).astype(np.float32)
    return {"x": x, "v": v, "m": mask, "w": w, "ids": rng.integers(0, 3, 6)}


def weights(shape: Sequence[int]) -> np.ndarray:
    """Return factors of the items of an output. The gradients are those of the weighted sum."""
    return np.cos(np.arange(np.prod(shape, dtype=int), dtype=np.float32)).reshape(shape)


def _export(function: Any, names: Sequence[str], exporter: str, path: Path) -> None:
    """Write the file of a function of tensors, with inputs of these names."""
    import torch

    class Module(torch.nn.Module):
        def forward(self, *arguments):
            return function(*arguments)

    arguments = tuple(torch.from_numpy(draw(0)[name]) for name in names)
    if exporter == "dynamo":
        program = torch.onnx.export(
            Module(), arguments, dynamo=True, input_names=list(names), verbose=False
        )
        program.save(path)
    else:
        torch.onnx.export(
            Module(), arguments, path, dynamo=False, input_names=list(names), opset_version=18
        )


def _computed(function: Any, names: Sequence[str], case: int) -> dict[str, np.ndarray]:
    """Return torch's outputs for a draw of the inputs, and the gradient of their weighted sum."""
    import torch

    inputs = [torch.from_numpy(draw(case)[name]) for name in names]
    real = [x.requires_grad_() for x in inputs if x.is_floating_point()]
    y = function(*inputs)
    outputs = y if isinstance(y, tuple) else (y,)
    arrays = {str(i): output.detach().numpy() for i, output in enumerate(outputs)}
    total = sum(
        (output * torch.from_numpy(weights(output.shape))).sum()
        for output in outputs
        if output.requires_grad
    )
    if isinstance(total, torch.Tensor):
        gradients = torch.autograd.grad(total, real, allow_unused=True, materialize_grads=True)
        names_of_real = [n for n, x in zip(names, inputs, strict=True) if x.requires_grad]
        pairs = zip(names_of_real, gradients, strict=True)
        arrays |= {f"gradient.{name}": x.numpy() for name, x in pairs}
    return arrays


def _problem(session: Any, case: int, expected: np.ndarray) -> str:
    """Return how onnxruntime computes otherwise than torch, or "" if it agrees."""
    names = {x.name for x in session.get_inputs()}
    feeds = {name: x for name, x in draw(case).items() if name in names}
    try:
        y = session.run(None, feeds)[0]
    except Exception as error:
        return str(error).splitlines()[0][:120]
    is_equal = y.shape == expected.shape and np.allclose(y, expected, equal_nan=True, atol=1e-5)
    return "" if is_equal else "other values"


def _write_file(name: str, function: Any, names: Sequence[str], exporter: str, arrays: Any) -> None:
    """Write the file of a module, and report where onnxruntime computes otherwise than torch."""
    import onnxruntime

    path = FOLDER / f"{name}-{exporter}.onnx"
    try:
        _export(function, names, exporter, path)
        session = onnxruntime.InferenceSession(path)
    except Exception as error:
        print(name, exporter, "no file:", str(error).strip().splitlines()[0][:150])
        path.unlink(missing_ok=True)
        return
    for case in range(CASES):
        expected = arrays.get(f"{name}.{case}.0")
        problem = "" if expected is None else _problem(session, case, expected)
        if problem:
            print(name, exporter, case, "onnxruntime:", problem)


def _write(only: Sequence[str]) -> None:
    """Write the files of the modules in `only`, of all if it is empty, and results of all."""
    warnings.simplefilter("ignore")
    FOLDER.mkdir(exist_ok=True)
    arrays: dict[str, Any] = {}
    for name, (function, names) in modules().items():
        for case in range(CASES):
            try:
                results = _computed(function, names, case)
            except Exception as error:
                print(name, case, "torch:", error)
                continue
            arrays |= {f"{name}.{case}.{key}": x for key, x in results.items()}
        if not only or name in only:
            for exporter in EXPORTERS:
                _write_file(name, function, names, exporter, arrays)
    np.savez_compressed(RESULTS, **arrays)


if __name__ == "__main__":
    _write(sys.argv[1:])
