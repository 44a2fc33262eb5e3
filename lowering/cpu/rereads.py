"""Find values with several readers, one of which is a product.

XLA should compute each of these values once for all readers.
"""

from __future__ import annotations

import math
from collections import Counter

import jax.numpy as jnp

from lowering.contexts import is_enabled
from lowering.extents import is_symbolic
from lowering.facts import facts
from lowering.jaxpr_types import Variable
from lowering.jaxprs import CONVOLUTION, PRODUCT, primitive, variables
from lowering.program import Program

# An array with fewer items than this is computed again for each reader. If larger arrays were
# computed again too, an encoder whose 128x384 items are rounded to 256 levels would take 29 ms.
# With this limit the encoder takes 21 ms. Without a limit XLA would compute the sum of each layer
# again, from the first layer on.
_FEWEST_ITEMS = 16 << 10


def reread(program: Program) -> set[Variable]:
    """Return variables that XLA should compute only once for several readers.

    The variables are results of elementwise operations. XLA would compute such a variable again
    for each reader that needs another shape: rows for a product, or halves of the rows for the
    gradient of a matrix. A variable is returned if it has several readers, and one of them is a
    product. These readers count:

    - In all programs products and sums count.
    - In a forward pass convolutions count as products, and the backward pass counts as a reader of
      each result. With this rule a training step of DenseNet-121 takes 0.96 of the time.
    - In a program of values elementwise operations count. For example, if a product and an addition
      read a layer norm, the addition would compute the norm again. With this rule an encoder takes
      0.96 (batch 1) and 0.88 (batch 8) of the time, and Swin-T takes 0.97.
    """
    if not is_enabled("in_memory"):
        return set()
    reader_counts = Counter[Variable]()
    kernels = {PRODUCT}
    if program.role == "forward":
        reader_counts.update(variables(program.results))
        kernels.add(CONVOLUTION)
    chosen: set[Variable] = set()
    read_by_kernels: set[Variable] = set()
    # The last equation comes first, so that the readers of a variable are counted before the
    # equation that computes the variable.
    for equation in reversed(program.equations):
        name = primitive(equation)
        operands = variables(equation.invars)
        if name in kernels:
            reader_counts.update(operands)
            read_by_kernels.update(operands)
        elif name == "reduce_sum":
            reader_counts.update(operands)
        elif facts(equation).shapes:
            # The readers of the result read the operands too.
            (result,) = equation.outvars
            reader_counts.update(dict.fromkeys(operands, reader_counts[result]))
            if result in read_by_kernels:
                read_by_kernels.update(operands)
        elif facts(equation).by_item:
            (result,) = equation.outvars
            if program.role == "value":
                reader_counts.update(operands)
            has_several_readers = reader_counts[result] > 1 and result in read_by_kernels
            if has_several_readers and _is_large(result):
                chosen.add(result)
    return chosen


def _is_large(variable: Variable) -> bool:
    """Tell whether a variable is float32 and has too many items to compute them repeatedly."""
    aval = variable.aval
    is_known = not any(map(is_symbolic, aval.shape))
    return aval.dtype == jnp.float32 and is_known and math.prod(aval.shape) >= _FEWEST_ITEMS
