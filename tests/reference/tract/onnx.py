"""Other operations of ONNX: normalisation, lookups, ensembles of trees."""

from __future__ import annotations

import math
import operator

import numpy as np


def lrn(input, alpha=1e-4, beta=0.75, bias=1.0, size=5):
    output = np.zeros(input.shape)
    for place in np.ndindex(*input.shape):
        n, c, *rest = place
        first = max(0, c - math.floor((size - 1) / 2))
        last = min(input.shape[1] - 1, c + math.ceil((size - 1) / 2))
        squares = sum(input[(n, k, *rest)] ** 2 for k in range(first, last + 1))
        output[place] = input[place] / (bias + alpha / size * squares) ** beta
    return output


def direct_lookup(input, values, fallback):
    output = np.zeros(input.shape, values.dtype)
    for place in np.ndindex(*input.shape):
        index = input[place]
        output[place] = values[index] if 0 <= index < len(values) else np.ravel(fallback)[0]
    return output


def reverse_lookup(input, keys, fallback):
    output = np.zeros(input.shape, np.int64)
    for place in np.ndindex(*input.shape):
        found = [index for index, key in enumerate(keys) if key == input[place]]
        output[place] = found[0] if found else fallback
    return output


_COMPARE = {
    1: operator.eq,
    2: operator.ne,
    3: operator.lt,
    4: operator.gt,
    5: operator.le,
    6: operator.ge,
}


def _real(bits):
    """Return the number of single precision with these bits."""
    return float(np.uint32(bits % 2**32).view(np.float32))


def _leaf(node, nodes, features):
    """Return the rows of the leaves that a tree leads to."""
    feature, if_true, if_false, bits, flags = nodes[node]
    if flags % 256 == 0:
        return range(feature, if_true)
    value = features[feature]
    true = flags >= 256 if np.isnan(value) else _COMPARE[flags % 256](value, _real(bits))
    return _leaf(if_true if true else if_false, nodes, features)


def tree_ensemble(input, trees, nodes, leaves, classes, aggregate):
    if input.ndim == 1:
        return tree_ensemble(input[None], trees, nodes, leaves, classes, aggregate)[0]
    join = {"SUM": sum, "AVERAGE": np.mean, "MIN": min, "MAX": max}[aggregate]
    output = np.zeros((len(input), classes))
    for row, features in enumerate(input):
        weights: list[list[float]] = [[] for _ in range(classes)]
        for root in trees:
            for leaf in _leaf(root, nodes, features):
                weights[leaves[leaf, 0]].append(_real(leaves[leaf, 1]))
        output[row] = [join(given) if given else 0.0 for given in weights]
    return output


OPERATIONS = {
    "tract_onnx_lrn": lrn,
    "direct_lookup": direct_lookup,
    "reverse_lookup": reverse_lookup,
    "tree_ensemble": tree_ensemble,
}
