"""The two fixed-point profiles of the NN extension (section 1.6), and what is chosen beside."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from nnef_jax.limits import Meter
from nnef_jax.options import require, require_flags
from nnef_jax.similar import did_you_mean, listed

OVERFLOW_POLICIES = ("saturate", "wrap")
ROUNDING_POLICIES = ("to_zero", "nearest_even")
SEMANTICS = ("spec", "khronos")
ON_UNFIT = ("error", "float")


@dataclass(frozen=True, slots=True)
class Profile:
    """The type of all tensors: a dtype, and how many of its bits are a fraction."""

    name: str
    dtype: str
    position: int

    @property
    def has_tables(self) -> bool:
        """Tell whether vxTensorTableLookupNode takes the type: UINT8 and INT16 alone."""
        return self.dtype != "int8"


PROFILES: Mapping[str, tuple[Profile, ...]] = {
    "openvx-8bit": (Profile("openvx-8bit", "int8", 0), Profile("openvx-8bit", "uint8", 0)),
    "openvx-16bit": (Profile("openvx-16bit", "int16", 8),),
}


def profile_of(name: Any, dtype: Any = None) -> Profile:
    """Return the profile of a name; `dtype` chooses uint8 instead of int8.

    Raises TypeError for what is no name, ValueError for one that there is not.
    """
    kinds = PROFILES[chosen("profile", name, PROFILES)]
    if dtype is None:
        return kinds[0]
    return next(k for k in kinds if k.dtype == chosen("dtype", dtype, [k.dtype for k in kinds]))


def chosen(name: str, value: Any, known: Collection[str]) -> str:
    """Return one of some words; raise TypeError or ValueError, with what may have been meant."""
    require(name, value, str, "a name")
    if value not in known:
        hint = did_you_mean(value, known, meter=Meter()) or f"there are {listed(known)}"
        raise ValueError(f"{name} must not be {value!r:.60}: {hint}")
    return value


@dataclass(frozen=True, slots=True)
class Choices:
    """How a lowered network computes, and what it does where an operation does not fit."""

    profile: Profile
    overflow_policy: str
    rounding_policy: str
    semantics: str
    on_unfit: str
    strict: bool
    positions: tuple[tuple[str, int], ...]

    @classmethod
    def of(
        cls,
        profile: Profile,
        overflow_policy: Any,
        rounding_policy: Any,
        semantics: Any,
        on_unfit: Any,
        strict: Any,
        positions: Any,
    ) -> Choices:
        """Return the choices that arguments make; raise TypeError or ValueError for wrong ones."""
        require_flags(strict=strict)
        given: Mapping[str, Any] = {} if positions is None else positions
        require("positions", given, Mapping, "a dict of fixed-point positions by tensor")
        for name, position in given.items():
            require("a name in positions", name, str, "a name of a tensor")
            require(f"the position of '{name}'", position, int, "a number of bits")
        if given and strict:
            message = f"a profile has one position, {profile.position}; others need strict=False"
            raise ValueError(message)
        return cls(
            profile,
            chosen("overflow_policy", overflow_policy, OVERFLOW_POLICIES),
            chosen("rounding_policy", rounding_policy, ROUNDING_POLICIES),
            chosen("semantics", semantics, SEMANTICS),
            chosen("on_unfit", on_unfit, ON_UNFIT),
            strict,
            tuple(sorted(given.items())),
        )
