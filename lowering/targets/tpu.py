"""The target for TPUs: its passes in order."""

from __future__ import annotations

from lowering.passes import detours, folding, hoisting, joins, roundings, siblings, sinking, updates
from lowering.targets.target import Target

TPU = Target(
    "tpu",
    (
        detours.run,
        roundings.run,
        folding.run,
        siblings.run,
        joins.run,
        sinking.run,
        joins.run,
        hoisting.run,
        updates.run,
        detours.run,
    ),
)
