"""Items by their indices: gather, scatter, top-k, one-hot."""

from __future__ import annotations

import numpy as np

_OF_DATUM_TYPE = {"f32": np.float64, "f16": np.float64, "i64": np.int64, "i32": np.int64}


def _item(array, place, missing=np.nan):
    """Return the item at coordinates; negative ones count from the end."""
    place = [i + extent if i < 0 else i for i, extent in zip(place, array.shape, strict=False)]
    if any(not 0 <= i < extent for i, extent in zip(place, array.shape, strict=False)):
        return missing
    return array[tuple(place)]


def gather(input, indices, axis, datum_type=""):
    axis = axis + input.ndim if axis < 0 else axis
    before, after = input.shape[:axis], input.shape[axis + 1 :]
    output = np.zeros(before + indices.shape + after, input.dtype)
    for place in np.ndindex(*output.shape):
        head = place[:axis]
        middle = place[axis : axis + indices.ndim]
        tail = place[axis + indices.ndim :]
        output[place] = _item(input, (*head, indices[middle], *tail))
    return output.astype(_OF_DATUM_TYPE.get(datum_type, input.dtype))


def gather_elements(input, indices, axis):
    output = np.zeros(indices.shape, input.dtype)
    for place in np.ndindex(*indices.shape):
        named = list(place)
        named[axis] = indices[place]
        output[place] = _item(input, named)
    return output


def gather_nd(input, indices, batch_dims=0):
    count = indices.shape[-1]
    output = np.zeros(indices.shape[:-1] + input.shape[batch_dims + count :], input.dtype)
    for place in np.ndindex(*indices.shape[:-1]):
        output[place] = _item(input, (*place[:batch_dims], *indices[place]))
    return output


_REDUCE = {
    "none": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": np.minimum,
    "max": np.maximum,
}


def _write(output, place, update, reduction):
    place = [i + extent if i < 0 else i for i, extent in zip(place, output.shape, strict=False)]
    if all(0 <= i < extent for i, extent in zip(place, output.shape, strict=False)):
        output[tuple(place)] = _REDUCE[reduction](output[tuple(place)], update)


def scatter_elements(input, indices, updates, axis, reduction="none"):
    output = input.copy()
    if np.ndim(updates) == 0:
        updates = np.full(indices.shape, updates)
    for place in np.ndindex(*indices.shape):
        named = list(place)
        named[axis] = indices[place]
        _write(output, named, updates[place], reduction)
    return output


def scatter_nd(input, indices, updates, reduction="none"):
    output = input.copy()
    for place in np.ndindex(*indices.shape[:-1]):
        _write(output, indices[place], updates[place], reduction)
    return output


def topk(input, k, axis, largest):
    axis = axis + input.ndim if axis < 0 else axis
    shape = (*input.shape[:axis], k, *input.shape[axis + 1 :])
    values, indices = np.zeros(shape, input.dtype), np.zeros(shape, np.int64)
    for place in np.ndindex(*input.shape[:axis], *input.shape[axis + 1 :]):
        line = (*place[:axis], slice(None), *place[axis:])
        items = [np.inf if np.isnan(item) else item for item in input[line]]
        # Python's sort keeps the order of what is equal.
        order = sorted(range(len(items)), key=lambda i: -items[i] if largest else items[i])
        indices[line] = order[:k]
        values[line] = input[line][order[:k]]
    return values, indices


def one_hot(indices, axis, depth, off_value=0.0, on_value=1.0):
    axis = axis + indices.ndim + 1 if axis < 0 else axis
    output = np.full((*indices.shape[:axis], depth, *indices.shape[axis:]), float(off_value))
    for place in np.ndindex(*indices.shape):
        index = indices[place] + depth if indices[place] < 0 else indices[place]
        if 0 <= index < depth:
            output[(*place[:axis], index, *place[axis:])] = on_value
    return output


OPERATIONS = {
    "tract_core_gather": gather,
    "gather_elements": gather_elements,
    "gather_nd": gather_nd,
    "scatter_elements": scatter_elements,
    "scatter_nd": scatter_nd,
    "topk": topk,
    "one_hot": one_hot,
    "tract_core_one_hot": lambda input, axis, dim: one_hot(np.trunc(input).astype(int), axis, dim),
}
