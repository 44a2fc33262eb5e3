"""The registries that the rules of this package enter."""

from __future__ import annotations

from lowering.registry import Registry

nnef = Registry()
