"""The targets for an unknown platform, and for platforms without kernels of their own."""

from __future__ import annotations

from lowering.passes import detours, folding, hoisting, inlining, joins, sinking
from lowering.targets.target import Target

# The passes of this target run before derivatives are taken.
DIFFERENTIABLE = Target(platform=None, passes=(inlining.run, folding.run), keeps_derivatives=True)
PLAIN = Target(platform="plain", passes=(detours.run,))

# These passes follow `siblings` on TPUs and GPUs. After them, a step of a recurrence has only one
# product.
RECURRENCES = (joins.run, sinking.run, joins.run, hoisting.run)
