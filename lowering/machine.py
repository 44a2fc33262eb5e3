"""Holds the profile of a machine: its rates, and the decisions that follow from the rates.

A rate is a measured speed, such as multiply-adds per second, or a measured time. A choice between
kernels is a function of shapes, dtypes and a profile. A wrong rate costs time, but never changes
results. `lowering.cpu.rates` measures the rates.

To add a rate:

1. Add a field. If a property compares the rate with another rate, the field belongs to
   `MachineProfile`. If a cost formula uses the rate, the field belongs to `Costs`.
2. Set the field in `DEFAULT`.
3. Measure the rate in `lowering.cpu.rates`.

The properties of `MachineProfile` are decisions. They are part of the cache keys of executables.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Any

from lowering.contexts import holding


class _Rates:
    """The base of dataclasses whose fields of type float are rates: measured speeds or times."""

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of the rates, which are the fields of the type float."""
        rates: Any = cls
        return [field.name for field in fields(rates) if field.type == "float"]


@dataclass(frozen=True)
class Costs(_Rates):
    """The rates (measured speeds and times) that determine the costs of kernels.

    The rates are for float32 and for all threads together. A kernel takes
    multiply-adds / `product` + bytes / `cached` + operations * `start` seconds. If its data exceed
    the caches, the bytes are divided by `memory` instead of `cached`.

    Args:
        product: the multiply-adds per second in large products, which Eigen computes.
        cached: the bytes per second that loops read and write in the caches.
        memory: the bytes per second that loops read and write in memory.
        start: the seconds that it takes to start an operation.
    """

    product: float
    cached: float
    memory: float
    start: float


@dataclass(frozen=True)
class MachineProfile(_Rates):
    """The rates (measured speeds) of a machine.

    Args:
        threads: the number of threads.
        bfloat16: the multiply-adds per second in products of bfloat16 matrices with float32
            sums, which YNNPACK computes.
        int8: the multiply-adds per second in products of 8-bit matrices with int32 sums, which
            YNNPACK computes.
        row: the multiply-adds per second in a loop of products of a row and a matrix.
        row_pairs: as `row`, if each of two threads multiplies the row by half of the matrix.
        loop: the items per second in a loop with vectors of 256 bits.
        wide_loop: the items per second in a loop with vectors of 512 bits. A processor without
            vectors of 512 bits uses its widest vectors.
        costs: the rates of cost formulas.
    """

    threads: int
    bfloat16: float
    int8: float
    row: float
    row_pairs: float
    loop: float
    wide_loop: float
    costs: Costs

    @property
    def multiplies_bfloat16(self) -> bool:
        """Tell whether products in bfloat16 are faster than products in float32."""
        return self.bfloat16 > self.costs.product

    @property
    def multiplies_bytes(self) -> bool:
        """Tell whether products of 8-bit integers are faster than products in float32."""
        return self.int8 > self.costs.product

    @property
    def keeps_wide_vectors(self) -> bool:
        """Tell whether loops are no slower with vectors of 512 bits than with 256 bits."""
        return self.wide_loop >= self.loop

    @property
    def pairs_rows(self) -> bool:
        """Tell whether the product of a row and a matrix is faster on two threads."""
        return self.threads > 1 and self.row_pairs > self.row

    def decisions(self) -> dict[str, bool]:
        """Return a dict from names of properties to their values, for cache keys of executables.

        `costs` is left out: an executable that was compiled for other costs is valid too,
        though it may be slower.
        """
        decisions: dict[str, bool] = {}
        for name, attribute in vars(MachineProfile).items():
            if isinstance(attribute, property):
                decisions[name] = getattr(self, name)
        return decisions


# This is the profile of hosts without measurements. Its rates were measured in float32 on two cores
# with AVX-512. `wide_loop` is larger than `loop`. This does no harm on processors without vectors
# of 512 bits. `bfloat16` and `int8` equal the rate of float32, so that products of these dtypes are
# computed in float32.
DEFAULT = MachineProfile(
    threads=2,
    bfloat16=1.37e11,
    int8=1.37e11,
    row=2.43e10,
    row_pairs=2.04e10,
    loop=1.81e9,
    wide_loop=2.15e9,
    costs=Costs(
        product=1.37e11,
        cached=6.87e10,
        memory=1.21e10,
        start=1.13e-6,
    ),
)

_profile: ContextVar[MachineProfile | None] = ContextVar("profile", default=None)


def held_profile() -> MachineProfile | None:
    """Return the profile that `using` has set, or None if it has set none."""
    return _profile.get()


def profile() -> MachineProfile:
    """Return the current profile: the one that `using` has set, or DEFAULT."""
    return _profile.get() or DEFAULT


def using(profile: MachineProfile) -> AbstractContextManager[None]:
    """Make a profile the current one in the block of a `with` statement."""
    return holding(_profile, profile)
