"""Models of scikit-learn's kind, of numbers: scales, encodings, linear ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import show
from nnef_jax.flattening.tensor_graph import Constant
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators import operator

DOMAIN = "ai.onnx.ml"
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def parameter(site: NodeSite, name: str, items: Any, dtype: str = "float32") -> Constant:
    """Return numbers that a node has as a tensor with a label."""
    return Constant(np.asarray(items, dtype), dtype, f"{site.name}.{name}")


def rows(site: NodeSite) -> Any:
    """Return the input as real numbers, a row for each thing to judge."""
    x = site.cast(site.operand(0), site.computed("float32"))
    if site.rank() not in (1, 2):
        raise InvalidShape(f"its input {show(site.shape())} must have one axis or two")
    return site.unsqueezed(x, (0,)) if site.rank() == 1 else x


def transformed(site: NodeSite, scores: Any, transform: str) -> Any:
    """Return scores as probabilities."""
    last = (1,)
    match transform:
        case "NONE":
            return scores
        case "SOFTMAX":
            return site.insert("softmax", {"x": scores}, axes=last)
        case "LOGISTIC":
            return site.term("sigmoid", scores)
        case "SOFTMAX_ZERO":  # scores of 0 stay
            most = site.insert("max_reduce", {"input": scores}, axes=last)
            powers = site.term("exp", site.term("sub", scores, most))
            faded = site.term("mul", scores, site.term("exp", site.term("neg", most)))
            powers = site.chosen(site.term("gt", site.term("abs", scores), 1e-7), powers, faded)
            total = site.insert("sum_reduce", {"input": powers}, axes=last, normalize=False)
            is_zero = site.term("eq", total, 0.0)
            shares = site.term("div", powers, site.chosen(is_zero, 1.0, total))
            return site.chosen(is_zero, 0.5, shares)
        case _:
            return _probit(site, scores)


def _probit(site: NodeSite, x: Any) -> Any:
    """Return the quantiles of probabilities by Winitzki's formula, as runtimes compute them."""
    x = site.term("sub", site.term("mul", x, 2.0), 1.0)
    log = site.term("log", site.term("sub", 1.0, site.term("sqr", x)))
    mean = site.term("add", site.term("mul", log, 0.5), 2 / (np.pi * 0.147))
    root = site.term("sub", site.term("sqr", mean), site.term("mul", log, 1 / 0.147))
    root = site.term("sqrt", site.term("sub", site.term("sqrt", root), mean))
    return site.term("mul", site.term("mul", site.term("sign", x), root), 1.41421356)


def classes(site: NodeSite, name: str) -> NDArray[np.int64]:
    """Return the labels of classes, which must be numbers."""
    if site.node.attributes.get("classlabels_strings"):
        raise InvalidOperation("its labels are strings, of which there are no arrays in JAX")
    return np.array(site.ints(name, ()), np.int64)


def labelled(site: NodeSite, labels: NDArray[np.int64], index: Any) -> Any:
    """Return labels of classes at indices, the indices themselves without labels."""
    dtype = site.computed("int64")
    if not len(labels):
        return site.cast(index, dtype)
    return site.emit("gather", {"input": site.constant(labels, "int64"), "indices": index}, axis=0)


def best(site: NodeSite, scores: Any) -> Any:
    """Return the index of the highest score of each row."""
    found = site.insert("argmax_reduce", {"input": scores}, axes=(1,))
    return site.insert("squeeze", {"input": found}, axes=(1,))


def is_above(site: NodeSite, scores: Any, threshold: float) -> Any:
    """Return 1 for rows whose one score is above a threshold, 0 for others."""
    found = site.cast(site.term("gt", scores, threshold), site.graph.builder.integer)
    return site.insert("squeeze", {"input": found}, axes=(1,))


def beside(site: NodeSite, first: Any, second: Any) -> Any:
    """Return columns of two classes as one tensor."""
    return site.insert("concat", {"values": [first, second]}, axis=1)


# Preparation


@operator("Scaler", domain=DOMAIN)
def _scaler(site: NodeSite) -> Any:
    x = site.cast(site.operand(0), site.computed("float32"))
    offset, scale = site.numbers("offset", (0.0,)), site.numbers("scale", (1.0,))
    x = site.term("sub", x, parameter(site, "offset", offset))
    return site.term("mul", x, parameter(site, "scale", scale))


@operator("Binarizer", domain=DOMAIN)
def _binarizer(site: NodeSite) -> Any:
    return site.cast(site.term("gt", site.operand(0), site.number("threshold", 0)), site.dtype_of())


@operator("Normalizer", domain=DOMAIN)
def _normalizer(site: NodeSite) -> Any:
    """Divide rows by their largest item, or by a norm; rows of 0 stay."""
    norm, axes = site.choice("norm", "MAX", "L1", "L2", default="MAX"), (site.rank() - 1,)
    x = site.cast(site.operand(0), site.computed("float32"))
    if norm != "MAX":
        kind = f"{norm.lower()}_normalization"
        return site.emit(kind, {"input": x}, axes=axes, bias=0.0, epsilon=0.0)
    most = site.insert("max_reduce", {"input": x}, axes=axes)
    return site.term("div", x, site.chosen(site.term("eq", most, 0.0), 1.0, most))


@operator("Imputer", domain=DOMAIN)
def _imputer(site: NodeSite) -> Any:
    """Replace items of one value, which may be NaN, by that of their column."""
    kind = ("float", "floats") if site.is_real() else ("int64", "int64s")
    values = np.array(site.attribute(f"imputed_value_{kind[1]}", tuple, ()))
    replaced = site.number(f"replaced_value_{kind[0]}", 0)
    x, dtype = site.operand(0), site.dtype_of()
    if np.isnan(replaced):
        is_missing = site.term("is_nan", x)
    else:
        is_missing = site.term("eq", x, replaced if site.is_real() else int(replaced))
    return site.chosen(is_missing, site.constant(values, dtype), x)


@operator("ArrayFeatureExtractor", domain=DOMAIN)
def _array_feature_extractor(site: NodeSite) -> Any:
    x, rank = site.operand(0), site.rank()
    x, rank = (site.unsqueezed(x, (0,)), 2) if rank == 1 else (x, rank)
    places = site.reshaped(site.operand(1), (site.volume(site.known_shape(1)),))
    return site.emit("gather", {"input": x, "indices": places}, axis=rank - 1)


@operator("FeatureVectorizer", domain=DOMAIN)
def _feature_vectorizer(site: NodeSite) -> Any:
    dtype = site.computed("float32")
    parts = [site.cast(site.tensor(i), dtype) for i in range(len(site.operands))]
    parts = [site.unsqueezed(x, (0,)) if site.rank(x) == 1 else x for x in parts]
    widths = [site.shape(x)[-1] for x in parts]
    if tuple(site.ints("inputdimensions", widths)) != tuple(widths):
        raise InvalidShape(f"'inputdimensions' must be {widths}")
    return site.emit("concat", {"values": parts}, axis=1)


@operator("OneHotEncoder", domain=DOMAIN)
def _one_hot_encoder(site: NodeSite) -> Any:
    """Mark categories; one that is none of them gives NaN with `zeros` 0, an error of runtimes."""
    if "cats_strings" in site.node.attributes:
        raise InvalidOperation("its categories are strings, of which there are no arrays in JAX")
    categories = site.constant(site.ints("cats_int64s"), "int64")
    x, axis = site.unsqueezed(site.operand(0), (site.rank(),)), site.rank()
    categories = site.cast(categories, site.dtype_of())
    is_it = site.term("eq", x, categories)
    found = site.cast(is_it, site.computed("float32"))
    if site.flag("zeros", True):
        return found
    return site.chosen(site.insert("any_reduce", {"input": is_it}, axes=(axis,)), found, np.nan)


@operator("LabelEncoder", domain=DOMAIN, since=2)
def _label_encoder(site: NodeSite) -> Any:
    """Map numbers to others; of equal keys the last counts, and NaN is a key."""

    def items(name: str) -> tuple[NDArray[Any], str]:
        given = site.node.attributes
        if f"{name}_tensor" in given:
            return given[f"{name}_tensor"].array.reshape(-1), given[f"{name}_tensor"].type
        for kind, dtype in (("int64s", "int64"), ("floats", "float32")):
            if f"{name}_{kind}" in given:
                return np.array(given[f"{name}_{kind}"], dtype), dtype
        raise InvalidOperation(f"'{name}_*' must be numbers: of strings there are no arrays in JAX")

    (keys, key_dtype), (values, dtype) = items("keys"), items("values")
    if len(keys) != len(values) or not len(keys):
        raise InvalidOperation(f"it has {len(keys)} keys and {len(values)} values")
    if "default_tensor" in site.node.attributes:
        default = site.node.attributes["default_tensor"].array.reshape(-1)[0]
    elif dtype.startswith("float"):
        default = site.number("default_float", -0.0)
    else:
        default = site.int("default_int64", -1)
    places = {key: i for i, key in enumerate(keys.tolist()) if key == key}
    x = site.cast(site.operand(0), site.computed(key_dtype))
    order = list(places.values()) or [0]
    operands = {"input": x, "keys": parameter(site, "keys", keys[order], key_dtype)}
    index = site.insert("reverse_lookup", operands, fallback=-1)
    missing = [i for i, key in enumerate(keys.tolist()) if key != key]
    if missing:
        order.append(missing[-1])
        index = site.chosen(site.term("is_nan", x), site.constant(len(order) - 1, "int32"), index)
    operands = {
        "input": index, "values": parameter(site, "values", values[order], dtype),
        "fallback": site.constant(default, dtype),
    }  # fmt: skip
    return site.emit("direct_lookup", operands)


@operator("ZipMap", domain=DOMAIN)
def _zip_map(site: NodeSite) -> Any:
    raise InvalidOperation(
        "it makes maps from labels to scores, of which there are no arrays in JAX: convert with "
        "skl2onnx's options={'zipmap': False}, which gives the scores"
    )


# Linear models


def _linear(site: NodeSite, count: int | None, biases: str) -> Any:
    """Return products of rows with coefficients, those of a score side by side, plus biases."""
    x, coefficients = rows(site), np.array(site.numbers("coefficients"), np.float32)
    features = site.known_shape(x)[1]
    count = len(coefficients) // features if count is None else count
    if len(coefficients) != count * features:
        raise InvalidShape(f"it has {len(coefficients)} coefficients for {count} x {features}")
    bias: Any = site.numbers(biases, ())
    if len(bias) not in (0, 1, count):
        raise InvalidShape(f"'{biases}' must have {count} items, it has {len(bias)}")
    bias = parameter(site, biases, [bias]) if bias else site.zero(x)
    filter = parameter(site, "coefficients", coefficients.reshape(count, features))
    return site.insert("linear", {"input": x, "filter": filter, "bias": bias})


@operator("LinearRegressor", domain=DOMAIN)
def _linear_regressor(site: NodeSite) -> Any:
    scores = _linear(site, site.int("targets", 1), "intercepts")
    return transformed(site, scores, site.choice("post_transform", *TRANSFORMS, default="NONE"))


@operator("LinearClassifier", domain=DOMAIN)
def _linear_classifier(site: NodeSite) -> Any:
    """Return the label with the highest score, and scores; one score is that of the second."""
    labels, scores = classes(site, "classlabels_ints"), _linear(site, None, "intercepts")
    transform = site.choice("post_transform", *TRANSFORMS, default="NONE")
    if site.shape(scores)[1] > 1:
        return labelled(site, labels, best(site, scores)), transformed(site, scores, transform)
    found = labelled(site, labels if len(labels) == 2 else labels[:0], is_above(site, scores, 0.0))
    if len(labels) == 2:
        if transform == "PROBIT":
            raise InvalidOperation("'PROBIT' needs a score for each of its classes")
        scores = site.term("sigmoid", scores) if transform == "LOGISTIC" else scores
        return found, beside(site, site.term("sub", 1.0, scores), scores)
    return found, transformed(site, scores, transform)
