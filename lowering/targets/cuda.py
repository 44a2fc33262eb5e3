"""The target for GPUs of CUDA: its passes in order."""

from __future__ import annotations

from lowering.passes import cudnn, detours, folding, hoisting, joins, roundings, siblings, sinking
from lowering.targets.target import Target

CUDA = Target(
    "cuda",
    (
        detours.run,
        roundings.run,
        folding.run,
        cudnn.run,
        siblings.run,
        joins.run,
        sinking.run,
        joins.run,
        hoisting.run,
        detours.run,
    ),
)
