"""Find values that products and other kernels read, to compute them once for all readers."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import jax.numpy as jnp

from lowering.contexts import runs
from lowering.extents import is_symbolic
from lowering.facts import facts
from lowering.jaxprs import CONVOLUTION, PRODUCT, primitive, variables
from lowering.program import Program

# Arrays of fewer items are computed again. An encoder whose 128x384 items are rounded to 256 levels
# takes 21 ms with them kept, else 29: XLA computes each layer's sum anew from the first one on.
_ITEMS = 16 << 10


def reread(program: Program) -> set[Any]:
    """Return variables that elementwise operations compute, and a product and others read.

    XLA computes them again for each reader that wants another shape: rows for a product, halves of
    the rows for the gradient of a matrix. What a forward pass leaves, a backward pass reads; there
    what convolutions read counts, too, for which DenseNet-121's step takes 0.96 of the time. In a
    value any elementwise operation is such a reader: what is added to a layer norm that a product
    reads would compute the norm anew. The encoder takes 0.96 and 0.88 of the time so (batch 1, 8),
    Swin-T 0.97. In passes of derivatives only products and sums count as readers.
    """
    if not runs("in_memory"):
        return set()
    role = program.role
    readers = Counter(variables(program.results) if role == "forward" else ())
    kernels = (PRODUCT, CONVOLUTION) if role == "forward" else (PRODUCT,)
    chosen: set[Any] = set()
    products: set[Any] = set()
    for equation in reversed(program.equations):
        name = primitive(equation)
        operands = variables(equation.invars)
        if name == "reduce_sum" or name in kernels:
            readers.update(operands)
            products.update(operands if name in kernels else ())
        elif facts(equation).shapes:
            (result,) = equation.outvars
            readers.update({v: readers[result] for v in operands})
            products.update(operands if result in products else ())
        elif facts(equation).by_item:
            (result,) = equation.outvars
            if role == "value":
                readers.update(operands)
            aval = result.aval
            if (
                readers[result] > 1
                and result in products
                and aval.dtype == jnp.float32
                and not any(map(is_symbolic, aval.shape))
                and math.prod(aval.shape) >= _ITEMS
            ):
                chosen.add(result)
    return chosen
