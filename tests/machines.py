"""Profiles of machines in plain numbers, and one with or without units for fewer bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lowering.machine import DEFAULT, Costs, MachineProfile


def with_units(multiplies: bool) -> MachineProfile:
    """Return the profile of a host that multiplies fewer bits faster, or does not."""
    rate = DEFAULT.costs.product * (4 if multiplies else 0.5)
    return replace(DEFAULT, bfloat16=rate, int8=rate)


def profile_of(record: dict[str, Any]) -> MachineProfile:
    """Return the profile in a record."""
    return MachineProfile(**{**record, "costs": Costs(**record["costs"])})


def _record(
    product: float, bfloat16: float, int8: float, rows: tuple[float, float], wide: float = 1.8e9
) -> dict[str, Any]:
    costs = {"cached": 6e10, "memory": 1e10}
    return {
        "threads": 2,
        "bfloat16": bfloat16,
        "int8": int8,
        "row": rows[0],
        "row_pairs": rows[1],
        "loop": 1.8e9,
        "wide_loop": wide,
        "costs": {"product": product, **costs, "start": 1e-6},
    }


# Products of 1024x1024x1024 where nothing else is said, of two cores each.
RECORDS: dict[str, dict[str, Any]] = {
    "AVX2": _record(1.2e11, 4e10, 6e10, (1.2e10, 1.5e10)),  # Zen 3: a row gains 1.25 by pairs
    "AVX-512 VNNI": _record(2.77e11, 1.72e11, 2.73e11, (2.2e10, 2.1e10), wide=2.1e9),
    "AMX": _record(1.37e11, 4.61e11, 5.48e11, (2.43e10, 2.04e10), wide=2.15e9),  # 784x512x256
    "Zen 4": _record(7.5e10, 1.35e11, 7e10, (1.5e10, 1.9e10), wide=1.9e9),
    "Zen 5": _record(4.5e11, 9.04e11, 6.93e11, (3e10, 3.5e10), wide=2.5e9),
    "slow AVX-512": _record(1.5e11, 4e10, 6e10, (1.2e10, 1.5e10), wide=1.5e9),
    "ARM": _record(8e10, 6e10, 1.9e11, (1e10, 9e9)),
}
