"""Fourier transforms: of a tensor along an axis, and of frames of a signal."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import show
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators import operator


def _first(site: NodeSite, x: Any, axis: int, count: int) -> Any:
    """Cut an axis to a number of items, or pad it with zeros to that."""
    extent = site.known_shape(x)[axis]
    if count < extent:
        return site.part(x, axis, 0, count)
    if count == extent:
        return x
    behind = [(0, 0)] * site.rank(x)
    behind[axis] = (0, count - extent)
    return site.insert("pad", {"input": x}, padding=behind, border="constant", value=0.0)


def _is_real(site: NodeSite) -> bool:
    parts = site.known_shape()[-1:]
    if parts not in ((1,), (2,)):
        raise InvalidShape(f"the last axis of {show(site.shape())} must hold [re] or [re,im]")
    return parts == (1,)


@operator("DFT")
def _dft(site: NodeSite) -> Any:
    """Transform along an axis. `onesided` has frequencies from 0 to a half alone."""
    rank, inverse, onesided = site.rank(), site.flag("inverse"), site.flag("onesided")
    given = site.int("axis", 1) if site.version < 20 else site.integer(2, -2)
    axis, is_real = site.axis(given), _is_real(site)
    if axis == rank - 1:
        raise InvalidOperation(f"there is no signal along axis {given}, which holds [re,im]")
    if onesided and is_real == inverse:
        wanted = "complex" if inverse else "real"
        raise InvalidOperation(f"a signal must be {wanted} where 'onesided' is 1")
    extent = site.known_shape()[axis]
    whole = 2 * (extent - 1) if onesided and inverse else extent
    count = site.integer(1, whole)
    if count < 1:
        raise InvalidOperation(f"its length must be positive, it is {count}")
    x = site.operand(0)
    if onesided and inverse:
        # Frequencies above a half are conjugates of those below, which count twice.
        half = count // 2 + 1
        twice = np.full(half, 2.0)
        twice[0] = 1
        if count % 2 == 0:
            twice[-1] = 1
        shape = [1] * rank
        shape[axis] = half
        weights = site.constant(twice.reshape(shape), site.dtype_of())
        x = site.term("mul", _first(site, x, axis, half), weights)
    x = _first(site, x, axis, count)
    if is_real and not inverse:
        x = site.insert("squeeze", {"input": x}, axes=(rank - 1,))
        return _of_real(site, x, axis, count, onesided=onesided)
    x = site.insert("fft", {"input": _first(site, x, rank - 1, 2)}, axis=axis, inverse=inverse)
    x = site.term("div", x, float(count)) if inverse else x
    return _first(site, x, rank - 1, 1) if onesided else x


def _of_real(site: NodeSite, x: Any, axis: int, count: int, *, onesided: bool) -> Any:
    """Return frequencies of real numbers: those above a half are conjugates of those below."""
    add = site.emit if onesided else site.insert
    found, above = add("rfft", {"input": x}, axis=axis), (count - 1) // 2
    if onesided or not above:
        return found
    window = {"axes": (axis,), "begin": (above,), "end": (0,), "stride": (-1,)}
    others = site.insert("slice", {"input": found}, **window)
    others = site.term("mul", others, site.constant([1, -1], site.dtype_of()))
    return site.emit("concat", {"values": [found, others]}, axis=axis)


@operator("STFT")
def _stft(site: NodeSite) -> Any:
    """Transform windowed frames of signals [batch,items,1 or 2]: [batch,frames,frequencies,2]."""
    if site.rank() != 3:
        raise InvalidShape(f"its signal {show(site.shape())} must have three axes")
    is_real, step = _is_real(site), site.integer(1)
    onesided = site.flag("onesided", True)
    if onesided and not is_real:
        raise InvalidOperation("a signal must be real where 'onesided' is 1")
    whole = site.shape(2)[0] if site.has(2) else site.known_shape()[1]
    size = site.integer(3, whole)
    if site.has(2) and site.shape(2) != (size,):
        raise InvalidShape(f"its window {show(site.shape(2))} must have {size} items")
    pairs = _first(site, site.operand(0), 2, 2)
    operands = {"input": pairs, "window": site.operand(2) if site.has(2) else False}
    add = site.insert if onesided else site.emit
    found = add("stft", operands, axis=1, frame_length=size, frame_step=step)
    return _first(site, found, 2, size // 2 + 1) if onesided else found
