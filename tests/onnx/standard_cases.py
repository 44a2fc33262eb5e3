"""Nodes of the standard that its own suite leaves out, with the results of onnxruntime.

python -m tests.onnx.standard_cases    # as runtime_cases, into `standard_results.npz`
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.onnx.runtime_cases import Case, Draw, given, positive, real, whole, write

RESULTS = Path(__file__).parent / "standard_results.npz"
_BOTH = (True, True)
_PLANES = real(1, 4, 7, 6)
_UNEVEN = {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 0, 1, 1], "ceil_mode": 1}


def _case(name: str, inputs: Sequence[Draw | None], *, version: int = 22, **more: Any) -> Case:
    """Return a case. Its name is the operator's, with a suffix after '.' if there are several."""
    known, outputs = more.pop("known", ()), more.pop("outputs", (True,))
    operator = name.split(".")[0]
    return Case(name, operator, inputs, more, known, outputs, domain="", version=version)


def _learned(
    name: str, inputs: Sequence[Draw], outputs: Sequence[bool] = (True,), **more: Any
) -> Case:
    return Case(name, name.split(".")[0], inputs, more, (), outputs, domain="ai.onnx.ml")


def _ties(rng: np.random.Generator) -> Any:
    return np.maximum(rng.standard_normal((2, 3, 6, 5)), 0).astype(np.float32)


def _drawn(count: int, seed: int, low: float = -1) -> list[float]:
    return np.random.default_rng(seed).uniform(low, 1, count).astype(np.float32).tolist()


def _scales(*items: float) -> Draw:
    return given([1, 1, *items], "float32")


_IMAGE, _CROP = real(1, 2, 5, 7), given([0, 0, 0.2, -0.1, 1, 1, 0.8, 0.9], "float32")
_ROIS = given([[0, 0, 5, 6], [2.2, 1.5, 8.7, 7.1], [-1, -2, 3, 3]], "float32")
_WHOSE = given([0, 1, 1], "int64")
_NORMAL = (real(2, 4, 3, 2), real(4), real(4), real(4), positive(4))

# Two trees of three features: nodes 0, 1, 2 of each; a leaf votes for one or two classes.
_TREES: dict[str, Any] = {
    "nodes_treeids": [0, 0, 0, 0, 0, 1, 1, 1], "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
    "nodes_featureids": [0, 2, 0, 0, 0, 1, 0, 0],
    "nodes_values": [0.1, -0.2, 0.0, 0.0, 0.0, 0.3, 0.0, 0.0],
    "nodes_modes": ["BRANCH_LEQ", "BRANCH_GT", *["LEAF"] * 3, "BRANCH_LT", "LEAF", "LEAF"],
    "nodes_truenodeids": [1, 3, 0, 0, 0, 2, 0, 0], "nodes_falsenodeids": [2, 4, 0, 0, 0, 1, 0, 0],
}  # fmt: skip


def _votes(votes: str, ids: Sequence[int], weights: Sequence[float]) -> dict[str, Any]:
    owners = {"treeids": [0, 0, 0, 1, 1], "nodeids": [2, 3, 4, 1, 2]}
    named = {f"{votes}_{name}": items for name, items in owners.items()}
    return {**_TREES, **named, f"{votes}_ids": list(ids), f"{votes}_weights": list(weights)}


_SIGNED, _SHARES = (0.7, -0.9, 0.4, -0.3, 0.6), (0.1, 0.4, 0.2, 0.05, 0.5)
_MACHINE: dict[str, Any] = {
    "support_vectors": _drawn(15, 1), "coefficients": _drawn(10, 2), "rho": _drawn(3, 3),
    "vectors_per_class": [2, 1, 2], "classlabels_ints": [7, 5, 3], "kernel_params": [0.4, 0.3, 3.0],
}  # fmt: skip

CASES = [
    *(
        _case(f"{operator}.{mode}", [_PLANES], auto_pad=mode, kernel_shape=[3, 2], strides=[2, 1])
        for operator in ("MaxPool", "AveragePool")
        for mode in ("SAME_UPPER", "SAME_LOWER", "VALID")
    ),
    _case("MaxPool.uneven", [_PLANES], **_UNEVEN, dilations=[2, 1]),
    _case("MaxPool.columns", [_ties], outputs=_BOTH, kernel_shape=[2, 2], storage_order=1),
    _case("MaxPool.places", [_ties], outputs=_BOTH, kernel_shape=[3, 2], pads=[1, 0, 1, 0]),
    _case("AveragePool.uneven", [_PLANES], **_UNEVEN),
    _case("AveragePool.padded", [_PLANES], **_UNEVEN, count_include_pad=1),
    _case("LpPool.three", [_PLANES], **_UNEVEN, p=3),
    _case("LpPool.one", [_PLANES], kernel_shape=[2, 2], p=1, version=2),
    _case("GlobalLpPool.three", [_PLANES], p=3, version=2),
    _case("Conv.groups", [_PLANES, real(6, 2, 3, 3), real(6)], group=2, auto_pad="SAME_LOWER"),
    *(
        _case(f"ConvTranspose.{i}", [_PLANES, real(4, 3, 3, 3), real(6)], group=2, strides=[2, 3],
              version=11, **more)
        for i, more in enumerate([
            {"pads": [1, 0, 2, 1], "output_padding": [1, 1]},
            {"output_padding": [1, 1]},
            {"output_padding": [1, 1], "auto_pad": "SAME_UPPER"},
            {"auto_pad": "SAME_LOWER"},
            {"output_shape": [13, 19]},
            {"pads": [1, 2, 3, 1], "dilations": [2, 3]},
        ])
    ),
    _case("Col2Im.dilated", [real(2, 12, 9), given([5, 5], "int64"), given([2, 3], "int64")],
          known=(1, 2), dilations=[2, 1]),
    _case("BatchNormalization.trains", _NORMAL, outputs=(True,) * 3, training_mode=1, momentum=0.7),
    _case("BatchNormalization.items",
          [real(2, 4, 3), *[real(4, 3)] * 3, positive(4, 3)], spatial=0, version=7),
    _case("Softmax.planes", [_PLANES], axis=2, version=11),
    _case("LogSoftmax.planes", [_PLANES], version=1),
    _case("LRN.five", [_PLANES], size=5, alpha=0.1, beta=0.5, bias=2.0),
    *(
        _case(f"Resize.{policy}_{mode}", [_IMAGE, None, None, given([7, 8], "int64")], known=(3,),
              axes=[2, 3], keep_aspect_ratio_policy=policy, mode=mode, version=19)
        for policy in ("not_larger", "not_smaller")
        for mode in ("nearest", "linear", "cubic")
    ),
    _case("Resize.antialias", [_IMAGE, None, _scales(0.6, 0.7)], known=(2,), mode="cubic",
          antialias=1, exclude_outside=1, version=19),
    _case("Resize.symmetric", [_IMAGE, None, _scales(0.8, 2.3)], known=(2,), mode="linear",
          coordinate_transformation_mode="half_pixel_symmetric", version=19),
    _case("Resize.crop", [_IMAGE, _CROP, None, given([1, 2, 4, 5], "int64")], known=(3,),
          mode="linear", coordinate_transformation_mode="tf_crop_and_resize",
          extrapolation_value=9.0, version=13),
    _case("Resize.old", [_IMAGE, _scales(0.5, 2)], known=(1,), version=10),
    _case("Upsample.linear", [_IMAGE, _scales(2, 1.5)], known=(1,), mode="linear", version=9),
    _case("Upsample.attribute", [_IMAGE], scales=[1.0, 1.0, 2.0, 3.0], version=7),
    *(
        _case(f"RoiAlign.{mode}_{samples}_{version}", [real(2, 3, 8, 9), _ROIS, _WHOSE], mode=mode,
              sampling_ratio=samples, output_height=3, output_width=2, version=version)
        for mode, samples, version in (("max", 2, 10), ("max", 0, 16), ("avg", 2, 16))
    ),
    _case("MaxRoiPool.scaled",
          [real(2, 3, 8, 9), given([[0, 0, 0, 5, 6], [1, 2.2, 1.5, 8.7, 7.1]], "float32")],
          pooled_shape=[3, 2], spatial_scale=0.8, version=21),
    *(
        _case(f"TfIdfVectorizer.{mode}", [whole("int32", 3, 9, low=1, high=3)], mode=mode,
              version=9, min_gram_length=1, max_gram_length=2, max_skip_count=1,
              ngram_counts=[0, 2], ngram_indexes=[3, 0, 1, 4], pool_int64s=[2, 3, 1, 2, 3, 3],
              weights=[0.5, 2.0, 3.0, 0.25])
        for mode in ("TF", "IDF", "TFIDF")
    ),
    _case("DFT.longer", [real(2, 6, 3, 1), given(9, "int64")], known=(1,), onesided=1, version=17),
    _case("DFT.inverse", [real(2, 6, 3, 2), given(4, "int64")], known=(1,), inverse=1, version=17),
    _case("DFT.real", [real(2, 6, 3, 2)], inverse=1, onesided=1, version=17),
    *(
        _case(f"STFT.flat{sides}", [real(2, 20), given(4, "int64"), real(7)], known=(1,),
              onesided=sides, version=17)
        for sides in (0, 1)
    ),
    _case("STFT.complex", [real(2, 20, 2), given(4, "int64"), real(7)], known=(1,), onesided=0,
          version=17),
    _learned("Scaler", [whole("int64", 5, 4, low=-9, high=9)], offset=[0.1, 0.2, 0.3, 0.4],
             scale=[1.0, 2.0, 3.0, 4.0]),
    *(_learned(f"Normalizer.{norm}", [real(5, 4)], norm=norm) for norm in ("MAX", "L1", "L2")),
    _learned("Imputer", [given([[1, np.nan], [np.nan, 7]], "float32")],
             imputed_value_floats=[3.0, 4.0], replaced_value_float=float("nan")),
    _learned("OneHotEncoder", [given([[1, 2], [5, 3]], "int64")], cats_int64s=[1, 3, 2]),
    _learned("OneHotEncoder.all", [given([[1, 2], [1, 3]], "int64")], cats_int64s=[1, 3, 2],
             zeros=0),
    *(
        _learned(f"LinearRegressor.{transform}", [positive(5, 4)], coefficients=_drawn(8, 4, 0),
                 intercepts=[0.1, 0.2], targets=2, post_transform=transform)
        for transform in ("SOFTMAX", "SOFTMAX_ZERO", "PROBIT")
    ),
    *(
        _learned(f"LinearClassifier.{transform}", [real(5, 4)], _BOTH, coefficients=_drawn(4, 5),
                 intercepts=[0.1], classlabels_ints=[3, 7], post_transform=transform)
        for transform in ("NONE", "LOGISTIC")
    ),
    *(
        _learned(f"TreeEnsembleRegressor.{how}", [real(9, 3)], n_targets=1, aggregate_function=how,
                 base_values=[0.5], **_votes("target", [0] * 5, _SIGNED))
        for how in ("SUM", "AVERAGE", "MIN", "MAX")
    ),
    *(
        _learned(f"TreeEnsembleClassifier.{transform}_{votes}_{i}", [real(9, 3)], _BOTH,
                 classlabels_int64s=labels, post_transform=transform,
                 **_votes("class", ids, weights))
        for votes, labels, ids in (
            ("first", [7, 5], [0] * 5),
            ("second", [7, 5], [1] * 5),
            ("all", [7, 5, 3], [0, 1, 2, 1, 0]),
        )
        for i, weights in enumerate((_SIGNED, _SHARES))
        for transform in ("NONE", "LOGISTIC")
        if not (ids[0] and transform == "NONE") and (len(labels) < 3 or weights is _SHARES)
    ),
    *(
        _learned(f"SVMClassifier.{kind}", [real(9, 3)], _BOTH, kernel_type=kind, **_MACHINE)
        for kind in ("LINEAR", "POLY", "RBF", "SIGMOID")
    ),
    *(
        _learned(f"SVMClassifier.shares_{count}", [real(9, 3)], _BOTH, kernel_type="RBF",
                 prob_a=_drawn(pairs, 4), prob_b=_drawn(pairs, 5),
                 **{**_MACHINE, "rho": _drawn(pairs, 3), "coefficients": _drawn(5 * count - 5, 2),
                    "vectors_per_class": sizes, "classlabels_ints": list(range(count))})
        for count, pairs, sizes in ((2, 1, [2, 3]), (3, 3, [2, 1, 2]))
    ),
    _learned("SVMRegressor.alone", [real(9, 3)], support_vectors=_drawn(15, 6), n_supports=5,
             coefficients=_drawn(5, 7), rho=[0.1], kernel_type="RBF", kernel_params=[0.4, 0.0, 0.0],
             one_class=1),
]  # fmt: skip

if __name__ == "__main__":
    write(CASES, RESULTS)
