"""The targets for an unknown platform, and for platforms without kernels of their own."""

from __future__ import annotations

from lowering.passes import detours, folding, hoisting, inlining, joins, siblings, sinking
from lowering.targets.target import Target

# The passes before derivatives are taken.
DIFFERENTIABLE = Target(None, (inlining.run, folding.run), keeps_derivatives=True)
PLAIN = Target("plain", (detours.run,))

# The passes by which a step of a recurrence has one product, for TPUs and GPUs.
RECURRENCES = (siblings.run, joins.run, sinking.run, joins.run, hoisting.run)
