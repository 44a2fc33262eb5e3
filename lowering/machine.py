"""Holds a machine's profile: its rates, and the decisions between kernels that follow from them.

A choice between kernels is a function of shapes, dtypes and a profile. A wrong rate costs time, not
correctness. `lowering.cpu.rates` measures the rates.

To add a rate: (1) add a field, to `MachineProfile` if a property compares it with another rate, to
`Costs` if a cost formula uses it; (2) set it in `DEFAULT`; (3) measure it in `lowering.cpu.rates`.
Properties of `MachineProfile` are decisions; they are part of the cache keys of executables.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Any

from lowering.contexts import holding


class _Rates:
    @classmethod
    def names(cls) -> list[str]:
        """Return the names of the fields that are real numbers."""
        rates: Any = cls
        return [field.name for field in fields(rates) if field.type == "float"]


@dataclass(frozen=True)
class Costs(_Rates):
    """Rates for the costs of kernels, of all threads together in float32.

    A kernel takes multiply-adds / `product` + bytes / (`cached` or `memory`) + operations * `start`
    seconds.

    Args:
        product: multiply-adds a second in large products by Eigen.
        cached: bytes a second that loops read and write in the caches.
        memory: bytes a second that loops read and write in memory.
        start: seconds to start an operation.
    """

    product: float
    cached: float
    memory: float
    start: float


@dataclass(frozen=True)
class MachineProfile(_Rates):
    """Rates of a machine.

    Args:
        threads: the number of threads.
        bfloat16: multiply-adds a second in products of bfloat16 with float32 sums, by YNNPACK.
        int8: multiply-adds a second in products of 8 bits with int32 sums, by YNNPACK.
        row: multiply-adds a second in the product of a row and a matrix, as a loop.
        row_pairs: multiply-adds a second in such a product, half of the matrix on each of two
            threads.
        loop: items a second in a loop with vectors of 256 bits.
        wide_loop: items a second in a loop with vectors of 512 bits, if the processor has them.
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
        """Tell whether products of bfloat16 are faster than those of float32."""
        return self.bfloat16 > self.costs.product

    @property
    def multiplies_bytes(self) -> bool:
        """Tell whether products of 8 bits are faster than those of float32."""
        return self.int8 > self.costs.product

    @property
    def keeps_wide_vectors(self) -> bool:
        """Tell whether vectors of 512 bits are at least as fast as those of 256."""
        return self.wide_loop >= self.loop

    @property
    def pairs_rows(self) -> bool:
        """Tell whether the product of a row and a matrix is faster on two threads."""
        return self.threads > 1 and self.row_pairs > self.row

    def decisions(self) -> dict[str, bool]:
        """Return the decisions by name, for the cache keys of executables.

        Costs are left out: an executable for other costs is valid too, though it may be slower.
        """
        names = (name for name, item in vars(MachineProfile).items() if isinstance(item, property))
        return {name: getattr(self, name) for name in names}


# For hosts without measurements: the rates of two cores with AVX-512 in float32. `wide_loop` is
# larger than `loop`. Processors without vectors of 512 bits lose nothing by this. bfloat16 and
# int8 have the rate of float32, so that such products are computed in float32.
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
    """Return the profile that `using` set, or None."""
    return _profile.get()


def profile() -> MachineProfile:
    """Return the current profile: the one that `using` set, or DEFAULT."""
    return _profile.get() or DEFAULT


def using(profile: MachineProfile) -> AbstractContextManager[None]:
    """Set the current profile in the block of a `with` statement."""
    return holding(_profile, profile)
