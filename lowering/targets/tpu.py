"""The target for TPUs: the passes in order, and the form in which a TPU stores parameters."""

from __future__ import annotations

from lowering.jaxpr_types import Equation
from lowering.jaxprs import primitive
from lowering.passes import detours, epilogues, folding, patches, roundings, siblings, updates
from lowering.program import Program
from lowering.targets.portable import RECURRENCES
from lowering.targets.target import Target


def _transposes_matrix(program: Program, equation: Equation) -> bool:
    """Tell whether an equation transposes a matrix. All other axes must have extent 1.

    The matrix unit of a TPU reads a matrix in either order. If the transposed matrix is stored, the
    compiler may transpose it back in each call. By the compiler's estimate for a v5e, a call of
    BERT with a batch of 1 in bfloat16 takes 149 us with stored transposed matrices, and 131 us
    without them. A step of GPT-2 takes 2,730 us with them, and 2,255 us without them.
    """
    if primitive(equation) != "transpose":
        return False
    shape = equation.outvars[0].aval.shape
    long_axes = [axis for axis, extent in enumerate(shape) if extent != 1]
    return len(long_axes) == 2


# A TPU stores the last two axes of an array in tiles of 8 x 128 items, so that a vector of the
# shape (1, 1, 384) is copied before it is read as a vector. By the compiler's estimate, a call of
# BERT with a batch of 1 in bfloat16 takes 149 us instead of 169 us if unit axes are dropped.
TPU = Target(
    platform="tpu",
    passes=(
        detours.run,
        roundings.run,
        folding.run,
        epilogues.run,
        siblings.for_loops,
        *RECURRENCES,
        updates.run,
        detours.run,
    ),
    # Matrices of parameters are not joined in functions. In a training step of an LSTM with a batch
    # of 128, joins take longer than they gain: 3,281 us with them on a v5e, and 2,924 us without.
    passes_in_functions=(
        detours.run,
        roundings.run,
        epilogues.run,
        updates.run,
        patches.run,
        detours.run,
    ),
    is_in_call=_transposes_matrix,
    drops_unit_axes=True,
)
