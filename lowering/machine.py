"""What a machine computes how fast, and what is chosen by it.

A choice between kernels is a function of shapes, dtypes and a profile: the same for the same
profile, wherever it was measured. A wrong one costs time. Nothing is measured here.

To add a rate: a field of `MachineProfile` where a property of it compares it with another one, of
`Costs` where time is reckoned by shape; its value in `DEFAULT`; what measures it in
`lowering.cpu.rates`. What is chosen by it is one of `MachineProfile.decisions`, which the key of
what is compiled holds.
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
        """Return the names of the rates, which are real numbers."""
        these: Any = cls
        return [field.name for field in fields(these) if field.type == "float"]


@dataclass(frozen=True)
class Costs(_Rates):
    """Rates of float32 by which costs of kernels are reckoned, by all threads together.

    A kernel takes multiply-adds / rate + bytes / rate + starts * `start` seconds.

    Args:
        product: multiply-adds a second of large products by Eigen.
        cached: bytes a second that loops read and write in the caches.
        memory: the same beyond them.
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
        threads: how many compute at a time.
        bfloat16: multiply-adds a second of products of bfloat16 with sums of 32 bits, by YNNPACK.
        int8: the same of 8 bits.
        row: multiply-adds a second of a row by a matrix, in a loop.
        row_pairs: the same by halves of the matrix, on two threads.
        loop: items a second of a loop with vectors of 256 bits.
        wide_loop: the same with vectors of 512 bits, where the processor has them.
        costs: what is reckoned with by shape.
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
        """Tell whether vectors of 512 bits are no slower than others."""
        return self.wide_loop >= self.loop

    @property
    def pairs_rows(self) -> bool:
        """Tell whether a row is multiplied faster by two threads."""
        return self.threads > 1 and self.row_pairs > self.row

    def decisions(self) -> dict[str, bool]:
        """Return the choices by the profile, by name: the keys of executables have them.

        Choices by costs are not told: what other rates compiled serves as well, if not as fast.
        """
        names = (name for name, item in vars(MachineProfile).items() if isinstance(item, property))
        return {name: getattr(self, name) for name in names}


# For hosts that are not measured: float32 as two cores with AVX-512 compute it. Vectors of 512 bits
# are the widest there are elsewhere. What has fewer bits than 32 gains nothing: to multiply it in
# float32 takes at worst as long as that.
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
    """Return the profile that somebody set, if any."""
    return _profile.get()


def profile() -> MachineProfile:
    """Return the profile by which is chosen now."""
    return _profile.get() or DEFAULT


def using(profile: MachineProfile) -> AbstractContextManager[None]:
    """Choose by a profile meanwhile."""
    return holding(_profile, profile)
