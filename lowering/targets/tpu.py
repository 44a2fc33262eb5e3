"""The target for TPUs: its passes in order."""

from __future__ import annotations

from lowering.passes import detours, folding, roundings, updates
from lowering.targets.portable import RECURRENCES
from lowering.targets.target import Target

TPU = Target(
    "tpu",
    (detours.run, roundings.run, folding.run, *RECURRENCES, updates.run, detours.run),
)
