"""What suits all platforms: a network before its platform is known, and those without kernels."""

from __future__ import annotations

from lowering.passes import detours, folding, inlining
from lowering.targets.target import Target

# Derivatives are taken of what these give.
WRITTEN = Target(None, (inlining.run, folding.run))
PLAIN = Target("plain", (detours.run,))
