"""`nnef-jax compile`: compiles a network ahead, into the folder of `load(..., cache_dir=...)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from nnef_jax.errors import InputError, raise_all
from nnef_jax.formats.tract.recognition import Dialect
from nnef_jax.loading import load
from nnef_jax.model import Model, TensorSpec
from nnef_jax.variables import Progress


def load_and_compile(
    source: str,
    cache_dir: str,
    shapes: Mapping[str, Sequence[int]],
    progress: Progress | None,
    dialect: Dialect = "auto",
) -> Model:
    """Load a network and run it on zeros, a recurrent one by `step` as well.

    Raises InputError where the shape of an input is left open, besides what `load` does.
    """
    model = load(
        source, input_shapes=shapes, dialect=dialect, cache_dir=cache_dir, progress=progress
    )
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
    inputs = [_zeros(spec) for spec in model.inputs]
    model(*inputs)
    state = model.init_state()
    if state:
        model.step(state, *inputs)
    return model


def report(model: Model, cache_dir: str) -> str:
    """A line for each input, and where it all is."""
    inputs = ", ".join(f"{s.name}: {s.dtype}{_shown(s.shape)}" for s in model.inputs)
    return f"compiled {model.graph.name} for {inputs or 'no inputs'}\nkept in {cache_dir}"


def _zeros(spec: TensorSpec) -> jax.Array:
    return jnp.zeros([extent for extent in spec.shape if extent is not None], spec.dtype)


def _shown(shape: Sequence[int | None]) -> str:
    return f"[{','.join('?' if extent is None else str(extent) for extent in shape)}]"
