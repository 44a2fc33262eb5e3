"""The two fixed-point profiles of the extension (section 1.6), and the choices of `lower`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nnef_jax.options import require, require_choice, require_flags

OVERFLOW = ("saturate", "wrap")
ROUNDING = ("to_zero", "nearest_even")
SEMANTICS = ("spec", "khronos")


@dataclass(frozen=True, slots=True)
class FixedPointProfile:
    """The type of all tensors: a dtype, and the number of its fractional bits."""

    name: str
    dtype: str
    position: int

    @property
    def has_tables(self) -> bool:
        """Tell whether vxTensorTableLookupNode takes the type: UINT8 and INT16, but not INT8."""
        return self.dtype != "int8"


PROFILES: Mapping[str, tuple[FixedPointProfile, ...]] = {
    "openvx-8bit": (
        FixedPointProfile("openvx-8bit", "int8", 0),
        FixedPointProfile("openvx-8bit", "uint8", 0),
    ),
    "openvx-16bit": (FixedPointProfile("openvx-16bit", "int16", 8),),
}


def profile_of(name: str, dtype: str | None = None) -> FixedPointProfile:
    """Return a profile by its name.

    `dtype` selects uint8 or int8 for the 8-bit profile. Raises ValueError for an unknown name or
    dtype.
    """
    require_choice("profile", name, PROFILES)
    profile_by_dtype = {profile.dtype: profile for profile in PROFILES[name]}
    if dtype is None:
        dtype = next(iter(profile_by_dtype))  # the first one is the default
    require_choice("dtype", dtype, profile_by_dtype)
    return profile_by_dtype[dtype]


@dataclass(frozen=True, slots=True)
class Choices:
    """The arguments of `lower`, after they are checked."""

    profile: FixedPointProfile
    overflow_policy: str
    rounding_policy: str
    semantics: str
    on_unfit: str
    strict: bool
    positions: tuple[tuple[str, int], ...]

    @classmethod
    def of(
        cls,
        profile: FixedPointProfile,
        overflow_policy: str,
        rounding_policy: str,
        semantics: str,
        on_unfit: str,
        strict: bool,
        positions: Mapping[str, int] | None,
    ) -> Choices:
        """Return the choices, after checking them.

        Raises TypeError for an argument of a wrong type, and ValueError for a wrong value or for
        values that exclude each other.
        """
        require_choice("overflow_policy", overflow_policy, OVERFLOW)
        require_choice("rounding_policy", rounding_policy, ROUNDING)
        require_choice("semantics", semantics, SEMANTICS)
        require_choice("on_unfit", on_unfit, ("error", "float"))
        require_flags(strict=strict)
        if positions is None:
            positions = {}
        require("positions", positions, Mapping, "a dict of fixed-point positions by tensor")
        for name, position in positions.items():
            require("a name in positions", name, str, "a name of a tensor")
            require(f"the position of '{name}'", position, int, "a number of bits")
        if positions and strict:
            message = f"the profile has position {profile.position}, others need strict=False"
            raise ValueError(message)
        if positions and semantics == "khronos":
            raise ValueError("the C routines have one position, others need semantics='spec'")
        pairs = tuple(sorted(positions.items()))
        return cls(profile, overflow_policy, rounding_policy, semantics, on_unfit, strict, pairs)
