"""Interpolation between items: resize, grid_sample."""

from __future__ import annotations

from tests.op_cases.case import Given, Integers, Real

from .rows import row, tract_case

_IMAGE = Real((2, 2, 3, 4))
_LINE = Real((1, 10))
_COORDINATES = (
    "half_pixel",
    "pytorch_half_pixel",
    "half_pixel_symmetric",
    "tf_half_pixel_for_nn",
    "asymmetric",
    "align_corners",
)
_ROUNDINGS = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")


def _core(name, input, **attributes):
    return row(f"resize_{name}", "tract_core_resize", input, **attributes)


_CORE = (
    _core("default", _IMAGE, scales=[1.0, 1.0, 2.0, 2.0]),
    *(
        _core(
            f"{interpolator}_{coordinates}_{name}",
            _IMAGE,
            coord_transformer=coordinates,
            interpolator=interpolator,
            nearest_mode="round_prefer_ceil",
            **size,
        )
        for interpolator in ("nearest", "linear", "cubic")
        for coordinates in _COORDINATES
        for name, size in (
            ("whole", {"scales": [1.0, 1.0, 2.0, 3.0]}),
            ("between", {"scales": [1.0, 1.0, 1.5, 0.75]}),
            ("sizes", {"sizes": [2, 2, 5, 3]}),
        )
    ),
    *(
        _core(
            f"nearest_{mode}_{coordinates}",
            Real((2, 6)),
            coord_transformer=coordinates,
            nearest_mode=mode,
            scales=[1.0, 1.5],
        )
        for mode in _ROUNDINGS
        for coordinates in ("half_pixel", "asymmetric", "align_corners")
    ),
    # 1.7 and 0.7 are no numbers of single precision: items lie on a place up to that.
    _core("nearest_17", _LINE, scales=[1.0, 1.7], coord_transformer="asymmetric"),
    _core("nearest_7", _LINE, scales=[1.0, 0.7], coord_transformer="asymmetric"),
    _core("linear_17", _LINE, scales=[1.0, 1.7], interpolator="linear"),
    _core("nearest_half", _LINE, scales=[1.0, 0.5], coord_transformer="asymmetric"),
    _core("nearest_one", _LINE, scales=[1.0, 0.1], nearest_mode="ceil"),
    _core("linear_one", _LINE, sizes=[1, 1], interpolator="linear"),
    _core(
        "linear_one_torch",
        _LINE,
        scales=[1.0, 0.1],
        interpolator="linear",
        coord_transformer="pytorch_half_pixel",
    ),
    _core(
        "linear_one_aligned",
        _LINE,
        sizes=[1, 1],
        interpolator="linear",
        coord_transformer="align_corners",
    ),
    _core("linear_of_one", Real((2, 1)), sizes=[2, 4], interpolator="linear"),
    _core("cubic_of_one", Real((2, 1)), sizes=[2, 4], interpolator="cubic"),
    _core("linear_all_axes", Real((2, 3)), scales=[2.0, 1.5], interpolator="linear"),
    _core("linear_vector", Real((5,)), sizes=[8], interpolator="linear"),
    _core(
        "linear_rank_5",
        Real((1, 2, 2, 3, 2)),
        scales=[1.0, 1.0, 2.0, 2.0, 1.5],
        interpolator="linear",
    ),
    _core("linear_long", Real((1, 70)), scales=[1.0, 1.5], interpolator="linear"),
    _core("cubic_long", Real((130,)), sizes=[40], interpolator="cubic"),
    _core("nearest_long", Real((70,)), sizes=[100], nearest_mode="round_prefer_floor"),
    _core("same", _IMAGE, scales=[1.0, 1.0, 1.0, 1.0], interpolator="cubic"),
    _core("nearest_integers", Integers((2, 3), -9, 9), scales=[2.0, 1.5]),
    _core("linear_integers", Integers((2, 4), -99, 99), scales=[1.0, 2.0], interpolator="linear"),
)


def _onnx(name, input, roi=None, **attributes):
    options = {}
    if roi is not None and "differentiable" not in attributes:
        options["not_differentiable"] = "the edge of the region is the edge of the input"
    attributes.pop("differentiable", None)
    operands = {"input": input} if roi is None else {"input": input, "roi": roi}
    return tract_case(f"onnx_resize_{name}", "resize", operands, attributes, **options)


_CROP = {"coordinate_transformation_mode": "tf_crop_and_resize"}
_WHOLE = Given((0.0, 0.0, 1.0, 1.0))
_INSIDE = Given((0.13, 0.21, 0.87, 0.71))
_BEYOND = Given((-0.33, 0.21, 0.81, 1.47))
_ONNX = (
    _onnx("default", _IMAGE, scales=[1.0, 1.0, 2.0, 1.5]),
    _onnx("sizes", _IMAGE, sizes=[2, 2, 5, 3], mode="linear"),
    _onnx(
        "linear_one_torch",
        _LINE,
        sizes=[1, 1],
        mode="linear",
        coordinate_transformation_mode="pytorch_half_pixel",
    ),
    _onnx("coefficient", _IMAGE, scales=[1.0, 1.0, 2.0, 1.5], mode="cubic", cubic_coeff_a=-0.5),
    *(
        _onnx(
            f"{interpolator}_excluded",
            _IMAGE,
            scales=[1.0, 1.0, 2.0, 1.5],
            mode=interpolator,
            coordinate_transformation_mode=coordinates,
            exclude_outside=True,
        )
        for interpolator, coordinates in (
            ("linear", "half_pixel_symmetric"),
            ("cubic", "half_pixel"),
        )
    ),
    *(
        _onnx(
            f"{interpolator}_antialias_{name}",
            Real((2, 9)),
            scales=scales,
            mode=interpolator,
            antialias=True,
            **attributes,
        )
        for interpolator in ("linear", "cubic")
        for name, scales, attributes in (
            ("half", [1.0, 0.5], {}),
            ("some", [0.5, 0.3], {}),
            ("up", [1.0, 2.5], {}),
            ("excluded", [1.0, 0.4], {"exclude_outside": True}),
            ("aligned", [1.0, 0.6], {"coordinate_transformation_mode": "align_corners"}),
        )
    ),
    _onnx("antialias_long", Real((150,)), scales=[0.5], mode="linear", antialias=True),
    *(
        _onnx(
            f"{interpolator}_crop_inside",
            Real((3, 5), distinct=True),
            _INSIDE,
            sizes=[2, 4],
            mode=interpolator,
            differentiable=True,
            **_CROP,
        )
        for interpolator in ("nearest", "linear", "cubic")
    ),
    *(
        _onnx(
            f"{interpolator}_crop_beyond",
            Real((3, 5), distinct=True),
            _BEYOND,
            scales=[1.5, 1.25],
            mode=interpolator,
            extrapolation_value=2.5,
            differentiable=True,
            **_CROP,
        )
        for interpolator in ("nearest", "linear", "cubic")
    ),
    _onnx("crop_whole", Real((3, 5)), _WHOLE, sizes=[5, 9], mode="linear", **_CROP),
    _onnx(
        "crop_one",
        Real((3, 5)),
        Given((0.13, 0.21, 0.67, 0.71)),
        sizes=[1, 1],
        mode="linear",
        differentiable=True,
        **_CROP,
    ),
    _onnx(
        "crop_image",
        _IMAGE,
        Given((0.0, 0.0, 0.2, 0.3, 1.0, 1.0, 0.9, 1.2)),
        sizes=[2, 2, 3, 3],
        mode="linear",
        extrapolation_value=-1.0,
        **_CROP,
    ),
    _onnx("roi_of_no_crop", Real((2, 3)), _INSIDE, scales=[2.0, 2.0]),
)

# Of these no point lies where a derivative jumps; some lie outside.
_GRID = Real((2, 3, 2, 2), low=-1.43, high=1.39, distinct=True)
_FAR = Given(((((-3.71, 0.33), (5.43, -7.91)), ((0.07, -1.0), (2.9, 1.17))),))


def _grid(name, input, grid, **attributes):
    return row(f"grid_sample_{name}", "grid_sample", input, grid, **attributes)


_GRIDS = (
    _grid("default", _IMAGE, _GRID),
    *(
        _grid(
            f"{mode}_{padding}{'_aligned' if aligned else ''}",
            Real((2, 2, 3, 4), distinct=True),
            _GRID,
            mode=mode,
            padding_mode=padding,
            align_corners=aligned,
        )
        for mode in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "border", "reflection")
        for aligned in (False, True)
    ),
    *(
        _grid(
            f"{mode}_{padding}_3d",
            Real((2, 2, 2, 3, 4), distinct=True),
            Real((2, 1, 2, 2, 3), low=-1.43, high=1.39, distinct=True),
            mode=mode,
            padding_mode=padding,
        )
        for mode in ("bilinear", "nearest")
        for padding in ("zeros", "border", "reflection")
    ),
    *(
        _grid(
            f"far_{mode}_{padding}{'_aligned' if aligned else ''}",
            Real((1, 2, 3, 4), distinct=True),
            _FAR,
            mode=mode,
            padding_mode=padding,
            align_corners=aligned,
        )
        for mode in ("bilinear", "nearest", "bicubic")
        for padding, aligned in (("border", False), ("reflection", False), ("reflection", True))
    ),
    _grid("1d", Real((2, 2, 5)), Real((2, 4, 1), low=-1.2, high=1.2), padding_mode="border"),
    _grid(
        "one_pixel",
        Real((1, 2, 1, 1)),
        Given(((((0.3, -0.7), (1.9, 0.2)),),)),
        padding_mode="reflection",
        align_corners=True,
    ),
    row(
        "grid_sample_halves",
        "grid_sample",
        Real((1, 1, 4, 4), distinct=True),
        Given(((((-0.5, 0.0), (0.5, 1.0)),),)),
        mode="nearest",
        not_differentiable="between two items the result jumps",
    ),
)

CASES = (*_CORE, *_ONNX, *_GRIDS)
