"""Functions for operators of ai.onnx.ml, which scikit-learn's models use.

This module has scaling, encoding and linear models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import show
from nnef_jax.flattening.operators.attributes import flag, integer, integers, number, numbers, word
from nnef_jax.flattening.operators.registry import Refusal
from nnef_jax.flattening.site import Tensor
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators.registry import operator

DOMAIN = "ai.onnx.ml"
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
TRANSFORM = word("post_transform", *TRANSFORMS)
_SMALLEST_SCORE = 1e-7  # SOFTMAX_ZERO treats smaller absolute scores as 0
# The constants of the approximation that computes PROBIT. Runtimes use the same digits.
_WINITZKI = 0.147
_ROOT_OF_2 = 1.41421356


def parameter(site: NodeSite, name: str, items: ArrayLike, dtype: str = "float32") -> Constant:
    """Return the numbers `items`, which come from an attribute of a node, as weights.

    The label of the weights is the node's name, a dot and `name`.
    """
    return Constant(np.asarray(items, dtype), dtype, f"{site.name}.{name}")


def feature_rows(site: NodeSite) -> Any:
    """Return input 0 as real numbers of shape (samples, features)."""
    x = site.cast(site.operand(0), site.computation_dtype("float32"))
    rank = site.rank()
    if rank not in (1, 2):
        raise InvalidShape(f"its input {show(site.shape())} must have one axis or two")
    return site.unsqueezed(x, (0,)) if rank == 1 else x


def transformed(site: NodeSite, scores: Tensor, transform: str) -> Any:
    """Apply a function to scores of shape (samples, classes).

    `transform` is the function's name, which is one of `TRANSFORMS`, such as "SOFTMAX".
    """
    match transform:
        case "NONE":
            return scores
        case "SOFTMAX":
            return site.step.softmax(scores, axes=(1,))
        case "LOGISTIC":
            return site.step.sigmoid(scores)
        case "SOFTMAX_ZERO":
            return _softmax_zero(site, scores)
        case _:  # PROBIT
            return _probit(site, scores)


def _softmax_zero(site: NodeSite, scores: Tensor) -> Any:
    """Compute the softmax of scores of shape (samples, classes), but keep scores of 0.

    The numerator of a score s is exp(s - m), where m is the largest score. If s is near 0, the
    numerator is s * exp(-m).
    """
    step = site.step
    classes_axis = (1,)
    largest = step.max_reduce(scores, axes=classes_axis)
    exponentials = step.exp(step.sub(scores, largest))
    near_zero = step.mul(scores, step.exp(step.neg(largest)))
    is_score = step.gt(step.abs(scores), _SMALLEST_SCORE)
    numerators = step.select(is_score, exponentials, near_zero)
    total = site.total(numerators, classes_axis)
    is_zero = step.eq(total, 0.0)
    shares = step.div(numerators, step.select(is_zero, 1.0, total))
    # The total is 0 if all scores are 0. Then each class gets 0.5.
    return step.select(is_zero, 0.5, shares)


def _probit(site: NodeSite, scores: Tensor) -> Any:
    """Compute the quantile function of the normal distribution: sqrt(2) * erfinv(2 * scores - 1).

    Runtimes compute erfinv by Winitzki's approximation, and so does this function. With a = 0.147,
    L = log(1 - x^2) and m = L / 2 + 2 / (pi * a), the approximation of erfinv(x) is

        sign(x) * sqrt(sqrt(m^2 - L / a) - m)
    """
    step = site.step
    x = step.sub(step.mul(scores, 2.0), 1.0)
    log = step.log(step.sub(1.0, step.sqr(x)))
    m = step.add(step.mul(log, 0.5), 2 / (np.pi * _WINITZKI))
    difference = step.sub(step.sqr(m), step.mul(log, 1 / _WINITZKI))
    magnitude = step.sqrt(step.sub(step.sqrt(difference), m))
    return step.mul(step.mul(step.sign(x), magnitude), _ROOT_OF_2)


def classes(site: NodeSite, labels: Sequence[int]) -> NDArray[np.int64]:
    """Return the labels of classes as an array.

    Raises InvalidOperation if the node has labels that are strings.
    """
    if site.node.attributes.get("classlabels_strings"):
        raise InvalidOperation("its labels are strings, of which there are no arrays in JAX")
    return np.array(labels, np.int64)


def labelled(site: NodeSite, labels: NDArray[np.int64], index: Tensor) -> Any:
    """Map each item of `index`, which is the index of a class, to the label of the class.

    If there are no labels, return the indices.
    """
    if len(labels) == 0:
        return site.cast(index, site.computation_dtype("int64"))
    return site.last.gather(site.constant(labels, "int64"), index, axis=0)


def best_class(site: NodeSite, scores: Tensor) -> Any:
    """Return the index of the highest score of each row.

    `scores` has shape (samples, classes), and the result has shape (samples,).
    """
    index = site.step.argmax_reduce(scores, axes=(1,))  # of shape (samples, 1)
    return site.squeezed(index, 1)


def is_above(site: NodeSite, scores: Tensor, threshold: float) -> Any:
    """Return 1 for each row whose score is above a threshold, and 0 for all other rows.

    `scores` has shape (samples, 1), and the result has shape (samples,).
    """
    is_larger = site.step.gt(scores, threshold)
    return site.squeezed(site.as_integer(is_larger), 1)


# Scaling and encoding


@operator("Scaler", domain=DOMAIN)
def _scaler(
    site: NodeSite,
    x: Tensor,
    *,
    offset: Sequence[float] = numbers("offset", (0.0,)),
    scale: Sequence[float] = numbers("scale", (1.0,)),
) -> Any:
    """Compute (x - offset) * scale."""
    x = site.cast(x, site.computation_dtype("float32"))
    difference = site.step.sub(x, parameter(site, "offset", offset))
    return site.step.mul(difference, parameter(site, "scale", scale))


operator("Binarizer", domain=DOMAIN, threshold=number("threshold", 0))(
    lambda site, x, *, threshold: site.cast(site.step.gt(x, threshold), site.dtype_of())
)


@operator("Normalizer", domain=DOMAIN)
def _normalizer(site: NodeSite, x: Tensor, *, norm: str = word("norm", "MAX", "L1", "L2")) -> Any:
    """Divide each row by its largest item ("MAX") or by its norm ("L1" or "L2").

    A row lies along the last axis. A row of zeros is not changed.
    """
    axes = (site.rank() - 1,)
    x = site.cast(x, site.computation_dtype("float32"))
    if norm == "L1":
        return site.last.l1_normalization(x, axes=axes, bias=0.0, epsilon=0.0)
    if norm == "L2":
        return site.last.l2_normalization(x, axes=axes, bias=0.0, epsilon=0.0)
    step = site.step
    largest = step.max_reduce(x, axes=axes)
    is_zero = step.eq(largest, 0.0)
    divisor = step.select(is_zero, 1.0, largest)
    return step.div(x, divisor)


@operator("Imputer", domain=DOMAIN)
def _imputer(site: NodeSite, x: Tensor) -> Any:
    """Replace each missing item of x by a value, which is the same for all items of a column.

    The attributes `imputed_value_floats` and `imputed_value_int64s` have a value for each column.
    An item is missing if it is equal to the attribute `replaced_value_float` or
    `replaced_value_int64`. The attribute may be NaN.
    """
    kind = "float" if site.is_real() else "int64"
    values = site.attribute(f"imputed_value_{kind}s", tuple, ())
    mark_of_missing = site.number(f"replaced_value_{kind}", 0)
    if np.isnan(mark_of_missing):
        is_missing = site.step.is_nan(x)
    else:
        is_missing = site.step.eq(x, mark_of_missing)
    return site.step.select(is_missing, site.constant(values, site.dtype_of()), x)


@operator("ArrayFeatureExtractor", domain=DOMAIN)
def _array_feature_extractor(site: NodeSite, x: Tensor, indices: Tensor) -> Any:
    """Select features of x by their indices. The features lie along the last axis of x."""
    if site.rank() == 1:  # to (1, features)
        x = site.unsqueezed(x, (0,))
    index_count = site.volume(site.known_shape(1))
    flat_indices = site.reshaped(indices, (index_count,))
    last_axis = site.rank(x) - 1
    return site.last.gather(x, flat_indices, axis=last_axis)


@operator("FeatureVectorizer", domain=DOMAIN)
def _feature_vectorizer(site: NodeSite, *inputs: Tensor) -> Any:
    """Concatenate several inputs along the last axis, which is the axis of features."""
    parts = [site.cast(site.tensor(x), site.computation_dtype("float32")) for x in inputs]
    for i, part in enumerate(parts):
        if site.rank(part) == 1:  # to (1, features)
            parts[i] = site.unsqueezed(part, (0,))
    feature_counts = [site.shape(part)[-1] for part in parts]
    if tuple(site.ints("inputdimensions", feature_counts)) != tuple(feature_counts):
        raise InvalidShape(f"'inputdimensions' must be {feature_counts}")
    return site.last.concat(parts, axis=1)


@operator("OneHotEncoder", domain=DOMAIN)
def _one_hot_encoder(site: NodeSite, x: Tensor, *, zeros: bool = flag("zeros", True)) -> Any:
    """Encode each item along a new last axis: 1 for its category, 0 for all other categories.

    An item of no category is encoded by zeros if `zeros` is set, otherwise by NaN. Runtimes raise
    an error instead of NaN.
    """
    if site.has_attribute("cats_strings"):
        raise InvalidOperation("its categories are strings, of which there are no arrays in JAX")
    category_axis = site.rank()
    categories = site.constant(site.ints("cats_int64s"), "int64")
    with_axis = site.unsqueezed(x, (category_axis,))
    is_equal = site.step.eq(with_axis, site.cast(categories, site.dtype_of()))
    marks = site.cast(is_equal, site.computation_dtype("float32"))
    if zeros:
        return marks
    has_category = site.step.any_reduce(is_equal, axes=(category_axis,))
    return site.step.select(has_category, marks, np.nan)


@operator("LabelEncoder", domain=DOMAIN, since=2)
def _label_encoder(
    site: NodeSite,
    x: Tensor,
    *,
    default_float: float = number("default_float", -0.0),
    default_int: int = integer("default_int64", -1),
) -> Any:
    """Map each item that equals a key to the key's value, and all other items to a default.

    If several keys are equal, the value of the last one is used.
    """
    keys, key_dtype = _encoded(site, "keys")
    values, dtype = _encoded(site, "values")
    if len(keys) == 0 or len(keys) != len(values):
        raise InvalidOperation(f"it has {len(keys)} keys and {len(values)} values")
    default_tensor = site.node.attributes.get("default_tensor")
    if default_tensor is not None:
        default = default_tensor.array.reshape(-1)[0]
    else:
        default = default_float if dtype.startswith("float") else default_int
    last_indices, nan_index = _last_indices(keys)
    x = site.cast(x, site.computation_dtype(key_dtype))
    # For each item of x, `row` has the table's row for the key that is equal to the item, or -1.
    # The table must not be empty. If all keys are NaN, the table has a row for the first key, which
    # is equal to no item.
    indices_of_rows = last_indices or [0]
    distinct_keys = parameter(site, "keys", keys[indices_of_rows], key_dtype)
    row = site.step.reverse_lookup(x, distinct_keys, fallback=-1)
    if nan_index is not None:
        # The lookup does not find NaN, since NaN is not equal to itself. The last row is for NaN.
        indices_of_rows.append(nan_index)
        row_of_nan = len(indices_of_rows) - 1
        row = site.step.select(site.step.is_nan(x), row_of_nan, row)
    table = parameter(site, "values", values[indices_of_rows], dtype)
    return site.last.direct_lookup(row, table, site.constant(default, dtype))


def _last_indices(keys: NDArray[Any]) -> tuple[list[int], int | None]:
    """Return the last index of each distinct key except NaN, and the last index of NaN.

    The second result is None if no key is NaN. For example, the keys 5, NaN, 7, 5 have the results
    [3, 2] and 1.
    """
    index_by_key: dict[float, int] = {}
    nan_index: int | None = None
    for i, key in enumerate(keys.tolist()):
        if math.isnan(key):
            nan_index = i
        else:
            index_by_key[key] = i
    return list(index_by_key.values()), nan_index


def _encoded(site: NodeSite, name: str) -> tuple[NDArray[Any], str]:
    """Return the keys or the values of a LabelEncoder, and their dtype.

    `name` is "keys" or "values". The keys are in the attribute `keys_tensor`, `keys_int64s` or
    `keys_floats`.
    """
    attributes = site.node.attributes
    tensor = attributes.get(f"{name}_tensor")
    if tensor is not None:
        return tensor.array.reshape(-1), tensor.type
    for suffix, dtype in (("int64s", "int64"), ("floats", "float32")):
        items = attributes.get(f"{name}_{suffix}")
        if items is not None:
            return np.array(items, dtype), dtype
    raise InvalidOperation(f"'{name}_*' must be numbers: JAX has no arrays of strings")


operator("ZipMap", domain=DOMAIN)(
    Refusal(
        "it makes maps from labels to scores, of which there are no arrays in JAX",
        "convert with skl2onnx's options={'zipmap': False}, which gives the scores",
    )
)


# Linear models


_LINEAR: dict[str, Any] = {
    "coefficients": numbers("coefficients"),
    "intercepts": numbers("intercepts", ()),
    "transform": TRANSFORM,
}


def _linear(
    site: NodeSite, count: int | None, coefficients: Sequence[float], intercepts: Sequence[float]
) -> Any:
    """Multiply rows by coefficients of shape (count, features), and add the intercepts.

    The result has shape (samples, count). If `count` is None, it is the number of coefficients
    divided by the number of features.
    """
    x = feature_rows(site)
    feature_count = site.known_shape(x)[1]
    if count is None:
        count = len(coefficients) // feature_count
    if len(coefficients) != count * feature_count:
        raise InvalidShape(f"it has {len(coefficients)} coefficients for {count} x {feature_count}")
    if len(intercepts) not in (0, 1, count):
        raise InvalidShape(f"'intercepts' must have {count} items, it has {len(intercepts)}")
    bias = parameter(site, "intercepts", [intercepts]) if intercepts else site.item(0, x)
    matrix = np.array(coefficients, np.float32).reshape(count, feature_count)
    return site.step.linear(x, parameter(site, "coefficients", matrix), bias)


@operator("LinearRegressor", domain=DOMAIN, **_LINEAR)
def _linear_regressor(
    site: NodeSite, *, count: int = integer("targets", 1), transform: str, **linear: Sequence[float]
) -> Any:
    """Compute `count` linear functions of the features in each row.

    `transform` is the name of the function that is applied to the results. `linear` has the
    coefficients and the intercepts.
    """
    scores = _linear(site, count, **linear)
    return transformed(site, scores, transform)


@operator("LinearClassifier", domain=DOMAIN, **_LINEAR)
def _linear_classifier(
    site: NodeSite,
    *,
    names: Sequence[int] = integers("classlabels_ints", ()),
    transform: str,
    **linear: Sequence[float],
) -> Any:
    """Return the label with the highest score for each row, and the scores.

    If a row has a single score, this is the score of the second of two classes. `names` are the
    labels, `transform` is the name of the function that is applied to the scores, and `linear` has
    the coefficients and the intercepts.
    """
    labels = classes(site, names)
    scores = _linear(site, count=None, **linear)
    if site.shape(scores)[1] > 1:
        label = labelled(site, labels, best_class(site, scores))
        return label, transformed(site, scores, transform)
    index = is_above(site, scores, threshold=0.0)
    if len(labels) != 2:
        # A single score needs two labels. Without two labels, the results are the index and the
        # score.
        label = site.cast(index, site.computation_dtype("int64"))
        return label, transformed(site, scores, transform)
    label = labelled(site, labels, index)
    if transform == "PROBIT":
        raise InvalidOperation("'PROBIT' needs a score for each of its classes")
    if transform == "LOGISTIC":
        scores = site.step.sigmoid(scores)
    complement = site.step.sub(1.0, scores)
    return label, site.step.concat([complement, scores], axis=1)
