"""Operations on shapes (spec 4.5)."""

from __future__ import annotations

from .case import Given, Integers, Logical, OpCase, Real

_TYPES = "it holds no reals"
_X = Real((2, 3, 4))
_I = Integers((2, 3, 4), -9, 9)
_IMAGE = Real((1, 2, 3, 4))
_NONE = (0, 0)

CASES = (
    OpCase("reshape_flat", "reshape", {"input": _X}, {"shape": [24]}),
    OpCase("reshape_keep_and_infer", "reshape", {"input": _X}, {"shape": [0, -1]}),
    OpCase("reshape_infer_first", "reshape", {"input": _X}, {"shape": [-1, 0, 2]}),
    OpCase("reshape_append", "reshape", {"input": _X}, {"shape": [0, 0, 2, 2]}),
    OpCase("reshape_start", "reshape", {"input": _X}, {"shape": [-1], "axis_start": 1}),
    OpCase(
        "reshape_middle",
        "reshape",
        {"input": Real((2, 6, 2, 3, 2))},
        {"shape": [3, -1, 0], "axis_start": 1, "axis_count": 3},
    ),
    OpCase(
        "reshape_insert",
        "reshape",
        {"input": _X},
        {"shape": [1, 1], "axis_start": 2, "axis_count": 0},
    ),
    OpCase(
        "reshape_front",
        "reshape",
        {"input": _X},
        {"shape": [-1], "axis_start": 0, "axis_count": 2},
    ),
    OpCase(
        "reshape_integer", "reshape", {"input": _I}, {"shape": [4, 6]}, not_differentiable=_TYPES
    ),
    OpCase("transpose_rank2", "transpose", {"input": Real((2, 3))}, {"axes": [1, 0]}),
    OpCase("transpose_cycle", "transpose", {"input": Real((2, 3, 4, 5))}, {"axes": [2, 0, 3, 1]}),
    OpCase("transpose_leading_axes", "transpose", {"input": Real((2, 3, 4, 2))}, {"axes": [1, 0]}),
    OpCase("transpose_nothing", "transpose", {"input": _X}, {"axes": [0, 1, 2]}),
    OpCase(
        "transpose_rank6",
        "transpose",
        {"input": Real((1, 2, 3, 1, 2, 2))},
        {"axes": [5, 3, 1, 0, 2, 4]},
    ),
    OpCase(
        "transpose_logical",
        "transpose",
        {"input": Logical((2, 3, 4))},
        {"axes": [0, 2, 1]},
        not_differentiable=_TYPES,
    ),
    OpCase("concat_channel", "concat", {"values": [Real((2, 3, 2)), Real((2, 1, 2))]}, {"axis": 1}),
    OpCase(
        "concat_batch",
        "concat",
        {"values": [Real((1, 3)), Real((2, 3)), Real((3, 3))]},
        {"axis": 0},
    ),
    OpCase("concat_one", "concat", {"values": [_X]}, {"axis": 2}),
    OpCase(
        "concat_integer",
        "concat",
        {"values": [Integers((2, 2), 0, 9), Integers((2, 3), 0, 9)]},
        {"axis": 1},
        not_differentiable=_TYPES,
    ),
    OpCase("split_even", "split", {"value": Real((2, 6, 2))}, {"axis": 1, "ratios": [1, 1, 1]}),
    OpCase("split_ratios", "split", {"value": Real((2, 12))}, {"axis": 1, "ratios": [1, 3, 2]}),
    OpCase("split_one", "split", {"value": _X}, {"axis": 0, "ratios": [1]}),
    OpCase("split_of_five", "split", {"value": Real((10, 2))}, {"axis": 0, "ratios": [2, 3]}),
    OpCase(
        "split_logical",
        "split",
        {"value": Logical((2, 4))},
        {"axis": 1, "ratios": [1, 1]},
        not_differentiable=_TYPES,
    ),
    OpCase(
        "slice_one_axis", "slice", {"input": Real((3, 8))}, {"axes": [1], "begin": [2], "end": [5]}
    ),
    OpCase(
        "slice_to_the_end",
        "slice",
        {"input": Real((3, 8))},
        {"axes": [1], "begin": [3], "end": [0]},
    ),
    OpCase(
        "slice_last", "slice", {"input": Real((3, 8))}, {"axes": [1], "begin": [-1], "end": [0]}
    ),
    OpCase(
        "slice_negative_end",
        "slice",
        {"input": Real((3, 8))},
        {"axes": [1], "begin": [1], "end": [-2]},
    ),
    OpCase(
        "slice_negative_both",
        "slice",
        {"input": Real((3, 8))},
        {"axes": [1], "begin": [-5], "end": [-1]},
    ),
    OpCase(
        "slice_two_axes",
        "slice",
        {"input": Real((3, 5, 6))},
        {"axes": [0, 2], "begin": [1, -4], "end": [0, 5]},
    ),
    OpCase(
        "slice_unsorted_axes",
        "slice",
        {"input": Real((3, 5, 6))},
        {"axes": [2, 1], "begin": [1, 2], "end": [3, 5]},
    ),
    OpCase(
        "slice_stride",
        "slice",
        {"input": Real((3, 8))},
        {"axes": [1], "begin": [1], "end": [8], "stride": [2]},
    ),
    OpCase(
        "slice_stride_remainder",
        "slice",
        {"input": Real((3, 8))},
        {"axes": [1], "begin": [0], "end": [7], "stride": [3]},
    ),
    OpCase(
        "slice_strides",
        "slice",
        {"input": Real((4, 6))},
        {"axes": [0, 1], "begin": [0, 1], "end": [4, 6], "stride": [3, 2]},
    ),
    OpCase(
        "slice_backwards",
        "slice",
        {"input": Real((3, 8))},
        {"axes": [1], "begin": [6], "end": [1], "stride": [-2]},
    ),
    OpCase(
        "slice_backwards_negative",
        "slice",
        {"input": Real((3, 8))},
        {"axes": [1], "begin": [-1], "end": [-9], "stride": [-1]},
    ),
    OpCase(
        "slice_integer",
        "slice",
        {"input": Integers((3, 8), -9, 9)},
        {"axes": [1], "begin": [2], "end": [5]},
        not_differentiable=_TYPES,
    ),
    OpCase("squeeze_one", "squeeze", {"input": Real((2, 1, 3))}, {"axes": [1]}),
    OpCase("squeeze_two", "squeeze", {"input": Real((2, 1, 3, 1))}, {"axes": [1, 3]}),
    OpCase("squeeze_unsorted", "squeeze", {"input": Real((1, 2, 1))}, {"axes": [2, 0]}),
    OpCase("squeeze_to_rank0", "squeeze", {"input": Real((1, 1))}, {"axes": [0, 1]}),
    OpCase(
        "squeeze_integer",
        "squeeze",
        {"input": Integers((1, 3), 0, 9)},
        {"axes": [0]},
        not_differentiable=_TYPES,
    ),
    OpCase("unsqueeze_front", "unsqueeze", {"input": Real((2, 3))}, {"axes": [0]}),
    OpCase("unsqueeze_tail", "unsqueeze", {"input": Real((2, 3))}, {"axes": [2, 3]}),
    OpCase("unsqueeze_mixed", "unsqueeze", {"input": _X}, {"axes": [0, 2, 5]}),
    OpCase(
        "unsqueeze_logical",
        "unsqueeze",
        {"input": Logical((3,))},
        {"axes": [1]},
        not_differentiable=_TYPES,
    ),
    OpCase("stack_front", "stack", {"values": [Real((2, 3)), Real((2, 3))]}, {"axis": 0}),
    OpCase("stack_middle", "stack", {"values": [Real((2, 3))] * 3}, {"axis": 1}),
    OpCase("stack_back", "stack", {"values": [Real((2, 3)), Real((2, 3))]}, {"axis": 2}),
    OpCase("stack_one", "stack", {"values": [Real((2, 3))]}, {"axis": 0}),
    OpCase(
        "stack_integer",
        "stack",
        {"values": [Integers((2,), 0, 9), Integers((2,), 0, 9)]},
        {"axis": 1},
        not_differentiable=_TYPES,
    ),
    OpCase("unstack_front", "unstack", {"value": Real((3, 2))}, {"axis": 0}),
    OpCase("unstack_back", "unstack", {"value": Real((2, 2, 4))}, {"axis": 2}),
    OpCase(
        "unstack_integer",
        "unstack",
        {"value": Integers((2, 2), 0, 9)},
        {"axis": 1},
        not_differentiable=_TYPES,
    ),
    OpCase("tile_all", "tile", {"input": Real((2, 1, 3))}, {"repeats": [2, 3, 2]}),
    OpCase("tile_batch", "tile", {"input": Real((1, 3))}, {"repeats": [4, 1]}),
    OpCase("tile_nothing", "tile", {"input": Real((2, 3))}, {"repeats": [1, 1]}),
    OpCase(
        "tile_integer",
        "tile",
        {"input": Integers((2, 2), -9, 9)},
        {"repeats": [1, 3]},
        not_differentiable=_TYPES,
    ),
    *(
        OpCase(
            f"pad_{border.replace('-', '_')}",
            "pad",
            {"input": _IMAGE},
            {"padding": [_NONE, _NONE, (1, 2), (3, 0)], "border": border},
        )
        for border in ("constant", "replicate", "reflect", "reflect-even")
    ),
    OpCase("pad_default", "pad", {"input": Real((2, 3))}, {"padding": [(1, 0), (0, 2)]}),
    OpCase(
        "pad_value",
        "pad",
        {"input": _IMAGE},
        {"padding": [(1, 0), (0, 1), (1, 1), (0, 2)], "border": "constant", "value": -1.5},
    ),
    OpCase(
        "pad_channel_reflect",
        "pad",
        {"input": Real((3, 4, 2))},
        {"padding": [(1, 1), (2, 3), _NONE], "border": "reflect"},
    ),
    OpCase(
        "pad_batch_replicate",
        "pad",
        {"input": Real((2, 3))},
        {"padding": [(2, 1), (1, 1)], "border": "replicate"},
    ),
    OpCase("pad_rank1", "pad", {"input": Real((4,))}, {"padding": [(3, 3)], "border": "reflect"}),
    OpCase(
        "pad_rank5",
        "pad",
        {"input": Real((1, 1, 2, 2, 3))},
        {"padding": [_NONE, _NONE, (1, 1), (2, 0), (0, 3)], "border": "reflect-even"},
    ),
    OpCase("gather_axis0", "gather", {"input": Real((4, 3)), "indices": Integers((5,), 0, 4)}),
    OpCase("gather_axis1", "gather", {"input": _X, "indices": Integers((2,), 0, 3)}, {"axis": 1}),
    OpCase("gather_last", "gather", {"input": _X, "indices": Integers((3,), 0, 4)}, {"axis": 2}),
    OpCase("gather_rank2", "gather", {"input": _X, "indices": Integers((2, 3), 0, 3)}, {"axis": 1}),
    OpCase("gather_rank0", "gather", {"input": _X, "indices": Given(2)}, {"axis": 1}),
    OpCase(
        "gather_integer",
        "gather",
        {"input": Integers((4, 2), -9, 9), "indices": Given((3, 0, 0))},
        not_differentiable=_TYPES,
    ),
    OpCase(
        "gather_logical",
        "gather",
        {"input": Logical((4, 2)), "indices": Given((3, 0))},
        not_differentiable=_TYPES,
    ),
    OpCase("cast_scalar_to_scalar", "cast", {"input": _X}, generic="scalar"),
    OpCase(
        "cast_scalar_to_integer",
        "cast",
        {"input": Given((-2.7, -1.0, -0.2, 0.0, 0.9, 1.0, 2.7))},
        generic="integer",
        not_differentiable="its results are integers",
    ),
    OpCase(
        "cast_scalar_to_logical",
        "cast",
        {"input": Given((-2.7, 0.0, 0.2, 1.0))},
        generic="logical",
        not_differentiable="its results are logical values",
    ),
    OpCase(
        "cast_integer_to_scalar", "cast", {"input": _I}, generic="scalar", not_differentiable=_TYPES
    ),
    OpCase(
        "cast_integer_to_logical",
        "cast",
        {"input": Given((-2, 0, 1))},
        generic="logical",
        not_differentiable=_TYPES,
    ),
    OpCase(
        "cast_logical_to_scalar",
        "cast",
        {"input": Logical((2, 3))},
        generic="scalar",
        not_differentiable=_TYPES,
    ),
    OpCase(
        "cast_logical_to_integer",
        "cast",
        {"input": Logical((2, 3))},
        generic="integer",
        not_differentiable=_TYPES,
    ),
)
