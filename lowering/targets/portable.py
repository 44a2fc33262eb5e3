"""The passes of networks whose platform is not known yet, or has no kernels of its own."""

from __future__ import annotations

from lowering.passes import detours, folding, inlining
from lowering.targets.target import Target

# Derivatives are taken of what these give.
DIFFERENTIABLE = Target(None, (inlining.run, folding.run), keeps_derivatives=True)
PLAIN = Target("plain", (detours.run,))
