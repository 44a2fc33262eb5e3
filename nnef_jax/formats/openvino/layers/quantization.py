"""Rounding to levels: FakeQuantize and its old name."""

from __future__ import annotations

import numpy as np

from lowering.errors import InvalidOperation
from lowering.graph import Value
from nnef_jax.formats.openvino.constants import Constant
from nnef_jax.formats.openvino.layers import everywhere
from nnef_jax.formats.openvino.site import Site


@everywhere("FakeQuantize", "Quantize")
def _fake_quantize(site: Site) -> Value:
    """Round to levels between the input's ends, spread between the output's ends.

    Where both pairs of ends are the same numbers and levels a power of 2 it is the standard's
    operation. Halves go to even ones.
    """
    levels = site.int("levels")
    if levels < 2:
        raise InvalidOperation(f"'levels' must be 2 or more, it is {levels}")
    ends = [site.operand(i) for i in range(1, 5)]
    known = [x.array for x in ends if isinstance(x, Constant)]
    bits = levels.bit_length() - 1
    if len(known) == 4 and 2**bits == levels and np.all(known[0] < known[1]):
        same = [
            np.array_equal(np.broadcast_arrays(known[i], known[i + 2])[0], known[i + 2])
            for i in (0, 1)
        ]
        if all(same) and known[0].shape == known[2].shape:
            x, low, high = site.aligned(site.tensor(0), ends[0], ends[1])
            flags = {"signed": False, "symmetric": False, "ties": "even"}
            return site.emit(
                "min_max_linear_quantize", {"x": x, "min": low, "max": high}, bits=bits, **flags
            )
    x, *aligned = site.aligned(site.tensor(0), *ends)
    names = ("input_low", "input_high", "output_low", "output_high")
    return site.emit(
        "fake_quantize", {"x": x, **dict(zip(names, aligned, strict=True))}, levels=levels
    )
