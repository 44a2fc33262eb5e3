"""Platforms without kernels of their own: the network as written, less detours."""

from __future__ import annotations

from lowering.passes import detours
from lowering.targets.target import Target

PLAIN = Target("plain", (detours.run,))
