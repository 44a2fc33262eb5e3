"""`nnef-jax compile`: compiles a network ahead, into the folder of `load(..., cache_dir=...)`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnef_jax import InputError, Model
from nnef_jax.errors import raise_all


def compile_ahead(model: Model) -> None:
    """Run a network on zeros, by `step` too if recurrent; InputError for an open shape."""
    raise_all(
        [
            InputError(
                f"the shape of input '{spec.name}' is not known, it is {_shown(spec.shape)}",
                hint=f"give one to compile for: --shape {spec.name}="
                + ",".join("1" if extent is None else str(extent) for extent in spec.shape),
            )
            for spec in model.inputs
            if None in spec.shape
        ]
    )
    inputs = [np.zeros([extent or 0 for extent in s.shape], s.dtype) for s in model.inputs]
    model(*inputs)
    state = model.init_state()
    if state:
        model.step(state, *inputs)


def report(model: Model, cache_dir: str) -> str:
    """Say what a network was compiled for, and where that is kept."""
    inputs = ", ".join(f"{s.name}: {s.dtype}{_shown(s.shape)}" for s in model.inputs)
    return f"compiled {model.graph.name} for {inputs or 'no inputs'}\nkept in {cache_dir}"


def _shown(shape: Sequence[int | None]) -> str:
    return f"[{','.join('?' if extent is None else str(extent) for extent in shape)}]"
