"""Up- and down-sampling (spec 4.3.4)."""

from __future__ import annotations

from .case import Real, row

_IMAGE = Real((2, 2, 3, 4))

CASES = (
    row("nearest_downsample_1d", "nearest_downsample", Real((2, 2, 6)), factor=[3]),
    row("nearest_downsample_2d", "nearest_downsample", Real((1, 2, 6, 4)), factor=[3, 2]),
    row("nearest_downsample_3d", "nearest_downsample", Real((1, 2, 2, 3, 4)), factor=[2, 1, 2]),
    row("area_downsample_1d", "area_downsample", Real((2, 2, 6)), factor=[2]),
    row("area_downsample_2d", "area_downsample", Real((1, 2, 6, 4)), factor=[3, 2]),
    row("area_downsample_3d", "area_downsample", Real((1, 2, 2, 3, 4)), factor=[2, 3, 1]),
    row("nearest_upsample_1d", "nearest_upsample", Real((2, 2, 3)), factor=[4]),
    row("nearest_upsample_2d", "nearest_upsample", _IMAGE, factor=[2, 3]),
    row("nearest_upsample_3d", "nearest_upsample", Real((1, 2, 2, 1, 3)), factor=[2, 3, 1]),
    row("multilinear_default", "multilinear_upsample", _IMAGE, factor=[2, 2]),
    *(
        row(
            f"multilinear_{method}_{border.replace('-', '_')}",
            "multilinear_upsample",
            _IMAGE,
            factor=[2, 3],
            method=method,
            border=border,
        )
        for method in ("symmetric", "asymmetric", "aligned")
        for border in ("constant", "replicate", "reflect", "reflect-even")
    ),
    *(
        row(
            f"multilinear_{method}_1d_{border}",
            "multilinear_upsample",
            Real((2, 2, 4)),
            factor=[4],
            method=method,
            border=border,
        )
        for method in ("symmetric", "asymmetric", "aligned")
        for border in ("constant", "replicate")
    ),
    *(
        row(
            f"multilinear_{method}_3d",
            "multilinear_upsample",
            Real((1, 2, 2, 3, 2)),
            factor=[2, 1, 3],
            method=method,
        )
        for method in ("symmetric", "asymmetric", "aligned")
    ),
    *(
        row(
            f"multilinear_{method}_one_pixel",
            "multilinear_upsample",
            Real((1, 2, 1, 3)),
            factor=[2, 2],
            method=method,
        )
        for method in ("symmetric", "asymmetric", "aligned")
    ),
    row("multilinear_factor_1", "multilinear_upsample", _IMAGE, factor=[1, 1], border="constant"),
    row(
        "multilinear_symmetric_constant_22",
        "multilinear_upsample",
        _IMAGE,
        factor=[2, 2],
        method="symmetric",
        border="constant",
    ),
)
