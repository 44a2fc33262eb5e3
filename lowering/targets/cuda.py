"""The target for GPUs of CUDA: its passes in order."""

from __future__ import annotations

from lowering.passes import cudnn, detours, folding, roundings
from lowering.targets.portable import RECURRENCES
from lowering.targets.target import Target

CUDA = Target(
    "cuda",
    (detours.run, roundings.run, folding.run, cudnn.run, *RECURRENCES, detours.run),
)
