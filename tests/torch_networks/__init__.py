"""Networks exported from PyTorch, with values and derivatives that PyTorch computes.

`export.py`, which needs PyTorch and torch_to_nnef, writes the files; its docstring says what is in
them. Everything here reads them with nnef_jax alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import nnef_jax

FOLDER = Path(__file__).resolve().parent
DESCRIPTIONS = {
    "resnet": "residual network: batch norm, max pool; any batch",
    "vit": "vision transformer: class token, multi-head attention; any batch",
    "bert": "encoder: embeddings, padding mask, pooler; any batch and length",
    "gpt": "decoder with a KV cache; any length of text and past",
    "gpt_fixed": "decoder with a KV cache of fixed size",
    "lstm": "two LSTM layers, states as inputs and outputs; any length",
    "gru": "two GRU layers in both directions; any length",
    "tcn": "causal dilated convolutions; any batch and length",
    "unet": "U-Net: transposed convolutions, group norm",
    "q40": "Llama-like block: RMS norm, grouped queries, Q4_0 weights",
    "int8": "convolutions quantised to 8 bits",
}
NAMES = tuple(DESCRIPTIONS)

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Run:
    """Inputs and PyTorch's results for them; the members are those of the .npz."""

    input: Arrays
    output: Arrays
    weight: Arrays
    gradient: Arrays
    parameter: Arrays


def load(name: str, **options: Any) -> nnef_jax.Model:
    """Return the network."""
    return nnef_jax.load(FOLDER / f"{name}.nnef.tgz", **options)


def runs(name: str) -> list[Run]:
    """Return the runs of a network."""
    found: dict[str, dict[str, dict[str, np.ndarray]]] = {}
    with np.load(FOLDER / f"{name}.npz") as arrays:
        for key, array in arrays.items():
            index, member, label = key.split("/", 2)
            found.setdefault(index, {}).setdefault(member, {})[label] = array
    empty: Arrays = {}
    return [
        Run(*(members.get(field, empty) for field in Run.__dataclass_fields__))
        for _, members in sorted(found.items())
    ]


def by_name(model: nnef_jax.Model, results: Any) -> dict[str, Any]:
    """Return the results of a call by the names of outputs."""
    names = [spec.name for spec in model.outputs]
    return dict(zip(names, results if len(names) > 1 else [results], strict=True))


def gradients(model: nnef_jax.Model, run: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the derivatives of the sum of weight * output in inputs and in parameters."""

    def total(inputs: Mapping[str, Any], parameters: Mapping[str, Any]) -> jax.Array:
        results = model.apply({**model.params, **parameters}, **{**run.input, **inputs})
        pairs = [(value, run.weight[name]) for name, value in by_name(model, results).items()]
        return jnp.stack([jnp.vdot(value, weight) for value, weight in pairs]).sum()

    inputs = {name: run.input[name] for name in run.gradient}
    parameters = {label: model.params[label] for label in run.parameter}
    return jax.jit(jax.grad(total, argnums=(0, 1)))(inputs, parameters)


def difference(found: Mapping[str, Any], expected: Arrays, floor: float = 0.0) -> float:
    """The largest difference of arrays, relative to the largest magnitude in each; 0 of none.

    A derivative that is 0 but for rounding, as that of a bias of keys, has no magnitude of its own:
    `floor` times the largest magnitude of all is the least that counts.
    """
    largest = {name: float(np.abs(array).max(initial=0)) for name, array in expected.items()}
    least = floor * max(largest.values(), default=0.0)
    assert all(np.shape(found[name]) == array.shape for name, array in expected.items())
    return max(
        (
            float(np.abs(np.asarray(found[name]) - array).max()) / max(largest[name], least)
            for name, array in expected.items()
            if array.size
        ),
        default=0.0,
    )


def rows() -> list[tuple[str, ...]]:
    """A table of all networks: their parameters, and the largest differences from PyTorch in run 0.

    A difference is the power of ten that it is below, so that the table is the same where the last
    bits of a sum are others.
    """
    header = ("network", "what it is", "parameters", "output", "input gradient")
    table = [(*header, "parameter gradient")]
    for name, description in DESCRIPTIONS.items():
        model, run = load(name), runs(name)[0]
        count = sum(array.size for array in model.params.values())
        value = difference(by_name(model, model(**run.input)), run.output)
        of_inputs, of_parameters = gradients(model, run)
        cells = (
            _power(value),
            _power(difference(of_inputs, run.gradient)) if run.gradient else "-",
            _power(difference(of_parameters, run.parameter, floor=1e-2)) if run.parameter else "-",
        )
        table.append((f"`{name}`", description, f"{count}", *cells))
    return table


def _power(difference: float) -> str:
    """Return the power of ten that a difference is below."""
    return f"1e{math.ceil(math.log10(difference))}" if difference else "0"


def claims() -> dict[str, list[float]]:
    """Return the rows of docs/pytorch.md by network: differences of output and gradients."""
    page = (FOLDER.parents[1] / "docs" / "pytorch.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| `(\w+)` .*?\| *\d+ *\|(.*)\|$", page, re.MULTILINE)
    return {
        name: [0.0 if cell.strip() == "-" else float(cell) for cell in cells.split("|")]
        for name, cells in lines
    }
