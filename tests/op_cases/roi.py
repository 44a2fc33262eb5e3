"""Regions of interest (1.0 final): rows of `rois` are x1, y1, x2, y2."""

from __future__ import annotations

from .case import Given, Real, row

_IMAGE = Real((2, 2, 6, 7), distinct=True)
# Inside; shifted by fractions; one pixel; beyond the edges on both sides.
_ROIS = Given(
    ((0.0, 0.0, 6.0, 5.0), (1.2, 0.7, 4.8, 3.3), (3.1, 2.2, 3.2, 2.1), (-2.3, 3.4, 8.7, 7.6))
)
_BATCH = Given((0, 1, 1, 0))
# Of these no sample lies on a pixel's centre or on the image's edge, where the derivative jumps.
_SMOOTH = Given(((0.13, 0.21, 5.37, 4.59), (1.23, 0.71, 4.87, 3.33), (-1.81, 2.43, 7.83, 7.17)))
_FEW = Given((0, 1, 0))
_HALVES = Given(((0.5, 1.5, 3.5, 4.5), (2.5, 0.5, 2.5, 0.5), (-1.5, -0.5, 1.5, 2.5)))
_OUTSIDE = Given(((10.0, 10.0, 12.0, 12.0), (-6.0, 1.0, -3.0, 4.0), (-1e9, 0.0, 1e9, 4.0)))
_POOL = "the corners jump at halves"

CASES = (
    *(
        row(f"{kind}_{name}", kind, _IMAGE, _ROIS, _BATCH, output_size=size)
        for kind in ("avg_roi_pool", "max_roi_pool")
        for name, size in (("2x2", [2, 2]), ("3x4", [3, 4]), ("1x1", [1, 1]), ("8x9", [8, 9]))
    ),
    *(
        row(
            f"{kind}_halves",
            kind,
            _IMAGE,
            _HALVES,
            _FEW,
            output_size=[2, 2],
            not_differentiable=_POOL,
        )
        for kind in ("avg_roi_pool", "max_roi_pool")
    ),
    *(
        row(f"{kind}_outside", kind, _IMAGE, _OUTSIDE, _FEW, output_size=[2, 3])
        for kind in ("avg_roi_pool", "max_roi_pool")
    ),
    row("roi_resample_default", "roi_resample", _IMAGE, _SMOOTH, _FEW, output_size=[3, 4]),
    *(
        row(
            f"roi_resample_{method}",
            "roi_resample",
            _IMAGE,
            _SMOOTH,
            _FEW,
            output_size=[4, 3],
            method=method,
        )
        for method in ("symmetric", "asymmetric", "aligned")
    ),
    *(
        row(
            f"roi_resample_{method}_whole",
            "roi_resample",
            _IMAGE,
            Given(((0.0, 0.0, 7.0, 6.0), (0.0, 0.0, 7.0, 6.0))),
            Given((1, 0)),
            output_size=[12, 7],
            method=method,
            not_differentiable="samples lie on the centres of pixels",
        )
        for method in ("symmetric", "asymmetric", "aligned")
    ),
    *(
        row(
            f"roi_resample_{method}_1x1",
            "roi_resample",
            _IMAGE,
            _SMOOTH,
            _FEW,
            output_size=[1, 1],
            method=method,
        )
        for method in ("symmetric", "asymmetric", "aligned")
    ),
    *(
        row(
            f"{kind}_{method}",
            kind,
            _IMAGE,
            _SMOOTH,
            _FEW,
            output_size=[2, 3],
            sampling_rate=[3, 2],
            resize_method=method,
        )
        for kind in ("avg_roi_align", "max_roi_align")
        for method in ("symmetric", "asymmetric", "aligned")
    ),
    *(
        row(
            f"{kind}_default", kind, _IMAGE, _SMOOTH, _FEW, output_size=[2, 2], sampling_rate=[1, 1]
        )
        for kind in ("avg_roi_align", "max_roi_align")
    ),
)
