"""Profiles of machines, as they were measured or as their documents have it: plain numbers."""

from __future__ import annotations

from dataclasses import replace

from lowering.machine import DEFAULT, Profile


def with_units(multiplies: bool) -> Profile:
    """Return the profile of a host that multiplies fewer bits faster, or does not."""
    rate = DEFAULT.costs.product * (4 if multiplies else 0.5)
    return replace(DEFAULT, bfloat16=rate, int8=rate)
