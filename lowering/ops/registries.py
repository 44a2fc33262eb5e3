"""The registries that the rules of this package enter."""

from __future__ import annotations

from lowering.registry import Registry

nnef = Registry()  # the standard
tract = Registry()  # what tract's dialect reads in another way, or adds; it goes over `nnef`
