"""The target for GPUs of CUDA: the passes in order, and the values that are not prepared."""

from __future__ import annotations

from lowering.facts import facts
from lowering.jaxpr_types import Equation
from lowering.jaxprs import primitive, variables
from lowering.passes import cudnn_attention, detours, epilogues, folding, roundings, siblings
from lowering.program import Program
from lowering.targets.portable import RECURRENCES
from lowering.targets.target import Target


def _reverses(program: Program, equation: Equation) -> bool:
    """Tell whether an equation reverses an array, or reshapes or transposes a reversed array.

    XLA computes a deconvolution by cuDNN's kernel only if it sees that the filter is reversed.
    Otherwise XLA writes a copy of the input with zeros between the items. With cuDNN's kernel, the
    instructions of a U-Net with a batch of 8 in bfloat16 access 247 MB on an H100 instead of 308
    MB.
    """
    # Go back through reshapes and transpositions.
    maker: Equation | None = equation
    while maker is not None and primitive(maker) != "rev":
        moves_items = facts(maker).shapes or primitive(maker) == "transpose"
        operands = variables(maker.invars) if moves_items else []
        maker = program.makers.get(operands[0]) if operands else None
    return maker is not None


CUDA = Target(
    platform="cuda",
    passes=(
        detours.run,
        roundings.run,
        folding.run,
        epilogues.run,
        siblings.run,
        *RECURRENCES,
        cudnn_attention.run,
        detours.run,
    ),
    passes_in_functions=(detours.run, roundings.run, epilogues.run, detours.run),
    is_in_call=_reverses,
)
