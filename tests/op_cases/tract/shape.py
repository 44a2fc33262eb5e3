"""Operations on shapes that tract reads differently from NNEF, or adds to it."""

from __future__ import annotations

from typing import Any

from tests.op_cases.case import Given, Integers, Logical, OpCase, Operand, Real

from .rows import TYPES, case, row

_X = Real((2, 3, 4))
_I = Integers((2, 3, 4), -9, 10)
_ROWS = Real((3, 8))
_NONE = (0, 0)

_AXES = (
    row("transpose_negative", "transpose", _X, axes=[0, -1, -2]),
    row("transpose_integers", "transpose", _I, not_differentiable=TYPES, axes=[2, 1, 0]),
    row("squeeze_unsorted", "squeeze", Real((1, 2, 1, 1)), axes=[3, 0]),
    row("squeeze_negative", "squeeze", Real((2, 1, 3, 1)), axes=[-1, 1]),
    row("squeeze_logical", "squeeze", Logical((1, 3)), not_differentiable=TYPES, axes=[0]),
    row("unsqueeze_neighbours", "unsqueeze", Real((2, 3)), axes=[1, 2]),
    row("unsqueeze_negative", "unsqueeze", Real((2, 3)), axes=[-1]),
    row("unsqueeze_both_ends", "unsqueeze", Real((2, 3)), axes=[0, -1]),
    row("unsqueeze_twice_in_front", "unsqueeze", Real((2, 3)), axes=[0, 0]),
    row("unsqueeze_twice_between", "unsqueeze", Real((2, 3)), axes=[1, 3, 1]),
    row("unsqueeze_rank0", "unsqueeze", Real(()), axes=[0, 1]),
    row("unsqueeze_integers", "unsqueeze", _I, not_differentiable=TYPES, axes=[1]),
)


def _slice(name: str, input: Operand, axes: Any, begin: Any, end: Any, *stride: int) -> OpCase:
    attributes = {"axes": axes, "begin": begin, "end": end}
    if stride:
        attributes["stride"] = list(stride)
    why = "" if isinstance(input, Real) else TYPES
    return row(f"slice_{name}", "slice", input, not_differentiable=why, **attributes)


_SLICES = (
    _slice("inside", _ROWS, [1], [2], [5]),
    _slice("to_the_end", _ROWS, [1], [3], [0]),
    _slice("all", _ROWS, [1], [0], [0]),
    _slice("last_of_one", Real((3, 1)), [1], [0], [0], 1),
    _slice("last", _ROWS, [1], [-1], [0]),
    _slice("negative_bounds", _ROWS, [-1], [-5], [-1]),
    _slice("clamped_end", _ROWS, [1], [5], [100], 1),
    _slice("clamped_begin", _ROWS, [1], [-100], [3]),
    _slice("nothing", _ROWS, [1], [5], [5]),
    _slice("nothing_crossed", _ROWS, [1], [6], [2]),
    _slice("nothing_beyond", _ROWS, [1], [8], [20]),
    _slice("two_axes", Real((3, 5, 6)), [2, 0], [1, -2], [-1, 9], 1, 1),
    _slice("stride", _ROWS, [1], [1], [8], 3),
    _slice("strides", Real((4, 6)), [0, 1], [0, 1], [0, 6], 3, 2),
    _slice("stride_beyond", _ROWS, [1], [2], [5], 7),
    _slice("backwards", _ROWS, [1], [0], [0], -1),
    _slice("backwards_between", _ROWS, [1], [1], [7], -2),
    _slice("integers", Integers((3, 8), -9, 9), [1], [2], [5]),
    _slice("logical", Logical((3, 8)), [0], [-2], [0]),
)


def _downsample(
    name: str, input: Operand, not_differentiable: str = "", **attributes: int
) -> OpCase:
    kind = "tract_core_downsample"
    return case(f"downsample_{name}", kind, {"input": input}, not_differentiable, **attributes)


def _dyn_slice(name: str, input: Operand, start: Operand, len: int, axis: int) -> OpCase:
    operands = {"input": input, "start": start, "end": 99}
    why = TYPES if isinstance(input, Integers) else "it is NaN" if "past" in name else ""
    return case(f"dyn_slice_{name}", "tract_core_dyn_slice", operands, why, len=len, axis=axis)


_PARTS = (
    _downsample("default", _ROWS, axis=1, stride=2),
    _downsample("modulo", _ROWS, axis=1, stride=3, modulo=2),
    _downsample("backwards", _ROWS, axis=1, stride=-2, modulo=1),
    _downsample("negative_axis", _X, axis=-3, stride=-1),
    _downsample("nothing", _ROWS, axis=0, stride=2, modulo=3),
    _downsample("integers", _I, TYPES, axis=2, stride=2, modulo=1),
    _dyn_slice("rank0", _ROWS, Given(2), 3, 1),
    _dyn_slice("rank1", _X, Given((1,)), 2, 1),
    _dyn_slice("literal", _ROWS, 0, 8, -1),
    _dyn_slice("negative_start", _ROWS, Given(-3), 2, 1),
    _dyn_slice("integers", _I, Given(1), 2, 1),
    _dyn_slice("nothing", _ROWS, Given(2), 0, 0),
    _dyn_slice("past_the_end", _ROWS, Given(6), 4, 1),
)


def _trilu(name: str, input: Operand, k: Operand, upper: bool) -> OpCase:
    why = "" if isinstance(input, Real) else TYPES
    return row(f"trilu_{name}", "tract_core_trilu", input, k, not_differentiable=why, upper=upper)


_TRIANGLES = (
    *(
        _trilu(f"{name}_{'upper' if upper else 'lower'}", Real(shape), k, upper)
        for upper in (True, False)
        for name, shape, k in (
            ("square", (4, 4), 0),
            ("wide", (3, 5), 1),
            ("tall", (5, 3), -2),
            ("batch", (2, 2, 3, 3), Given(1)),
            ("outside", (3, 3), 7),
        )
    ),
    _trilu("rank1_k", _X, Given((-1,)), True),
    _trilu("integers", _I, 0, False),
    _trilu("logical", Logical((4, 4)), Given(0), True),
)


def _pad(name: str, input: Operand, padding: list[tuple[int, int]], **attributes: Any) -> OpCase:
    why = "" if isinstance(input, Real) else TYPES
    return row(f"pad_{name}", "pad", input, not_differentiable=why, padding=padding, **attributes)


_EXTENSIONS = (
    row("tile_nothing", "tile", Real((2, 3)), repeats=[1, 0]),
    row("tile_logical", "tile", Logical((2, 2)), not_differentiable=TYPES, repeats=[2, 1]),
    _pad("value", _X, [(1, 0), (0, 1), (2, 1)], border="constant", value=-1.5),
    _pad("far", Real((3,)), [(1, 1)], value=-1e4),
    _pad("integers", Integers((2, 3), -9, 9), [(1, 1), (0, 2)], value=2.0),
    _pad("integers_cut_off", Integers((3,), -9, 9), [(1, 1)], value=-1.5),
    _pad("cut", Real((4, 3)), [(-1, 0), (0, -2)]),
    _pad("cut_and_extended", Real((4, 3)), [(-1, 2), (1, -3)], value=0.5),
    _pad("cut_to_nothing", Real((3, 2)), [(-1, -2), _NONE]),
    *(
        _pad(f"cut_{border}", Real((4, 5)), [(-1, 2), (3, -1)], border=border)
        for border in ("reflect", "replicated")
    ),
    _pad("logical", Logical((2, 3)), [(1, 0), (0, 1)], value=1.0),
    *(
        _pad(f"{border}_{name}", input, [(1, 2), _NONE, (3, 1)], border=border)
        for border in ("reflect", "replicated", "replicate")
        for name, input in (("real", Real((3, 2, 4))), ("integers", Integers((3, 2, 4), -9, 9)))
    ),
    *(
        row(f"broadcast_{name}", "tract_core_broadcast", input, not_differentiable=why, shape=shape)
        for name, input, why, shape in (
            ("equal_rank", Real((2, 1, 3)), "", [2, 4, 3]),
            ("new_axes", Real((3, 1)), "", [2, 3, 4]),
            ("keeps_extents", Real((2, 3)), "", [1, 3]),
            ("both_ways", Real((2, 1, 3)), "", [4, 1]),
            ("rank0", Real(()), "", [2, 2]),
            ("integers", Integers((1, 3), -9, 9), TYPES, [2, 3]),
            ("logical", Logical((2, 1)), TYPES, [2, 3]),
        )
    ),
    *(
        row(f"range_{name}", "tract_core_range", a, b, c, not_differentiable=TYPES)
        for name, a, b, c in (
            ("up", 0, 5, 1),
            ("steps", 2, 9, 3),
            ("down", 5, -3, -2),
            ("nothing", 3, 3, 1),
            ("reals", 0.0, 1.0, 0.25),
        )
    ),
)

CASES = (*_AXES, *_SLICES, *_PARTS, *_TRIANGLES, *_EXTENSIONS)
