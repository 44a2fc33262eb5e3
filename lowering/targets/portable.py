"""A network before its platform is known: as it is written, less what suits all."""

from __future__ import annotations

from lowering.passes import folding, inlining
from lowering.targets.target import Target

# Derivatives are taken of what these give.
WRITTEN = Target(None, (inlining.run, folding.run))
