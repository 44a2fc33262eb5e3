"""Normalisation of sums, as com.microsoft has it: layer norm and RMS norm with what is before."""

from __future__ import annotations

from typing import Any

from lowering.errors import InvalidOperation
from nnef_jax.formats.onnx.node_site import NodeSite
from nnef_jax.formats.onnx.operators import operator
from nnef_jax.formats.onnx.operators.quantizers import MICROSOFT

_EPSILON = 1e-12  # by default, where other operators have 1e-5


def _normal(
    site: NodeSite, x: Any, scale: int, bias: int | None, epsilon: float
) -> tuple[Any, ...]:
    """Return a normalised tensor, the mean and 1 / deviation; `bias` None is an RMS norm."""
    wide = site.cast(x, "float32") if site.dtype_of(x) in ("float16", "bfloat16") else x
    axes, mean = (site.rank(x) - 1,), None
    if bias is None:
        square = site.insert("mean_reduce", {"input": site.term("sqr", wide)}, axes=axes)
    else:
        mean, square = site.insert("moments", {"input": wide}, axes=axes)
        wide = site.term("sub", wide, mean)
    inverse = site.term("rsqrt", site.term("add", square, site.number("epsilon", epsilon)))
    found = site.cast(site.term("mul", wide, inverse), site.dtype_of(x))
    found = site.term("mul", found, site.operand(scale))
    if bias is not None and site.has(bias):
        found = site.term("add", found, site.operand(bias))
    return found, mean, inverse


@operator("SimplifiedLayerNormalization")
@operator("SimplifiedLayerNormalization", domain=MICROSOFT)
def _simplified_layer_normalization(site: NodeSite) -> tuple[Any, ...]:
    if site.axis(site.int("axis", -1)) != site.rank() - 1:
        raise InvalidOperation("'axis' must be the last one")
    found, _, inverse = _normal(site, site.operand(0), 1, None, 1e-5)
    return found, inverse


def _sum(site: NodeSite, bias: int) -> Any:
    total = site.term("add", site.operand(0), site.operand(1))
    return site.term("add", total, site.operand(bias)) if site.has(bias) else total


@operator("SkipLayerNormalization", domain=MICROSOFT)
def _skip_layer_normalization(site: NodeSite) -> tuple[Any, ...]:
    total = _sum(site, 4)
    return (*_normal(site, total, 2, 3, _EPSILON), total)


@operator("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def _skip_simplified_layer_normalization(site: NodeSite) -> tuple[Any, ...]:
    total = _sum(site, 3)
    return (*_normal(site, total, 2, None, _EPSILON), total)


@operator("EmbedLayerNormalization", domain=MICROSOFT)
def _embed_layer_normalization(site: NodeSite) -> tuple[Any, ...]:
    """Normalise sums of embeddings of words, positions, segments; count the items of a mask."""
    batch, times = site.known_shape()

    def looked_up(table: int, indices: Any) -> Any:
        return site.insert("gather", {"input": site.operand(table), "indices": indices}, axis=0)

    places = site.operand(8) if site.has(8) else site.places(times, 1, 2)
    total = site.term("add", looked_up(2, site.operand(0)), looked_up(3, places))
    if site.has(1):
        total = site.term("add", total, looked_up(4, site.operand(1)))
    if site.has(7):
        count = site.cast(site.operand(7), "int32")
        count = site.insert("sum_reduce", {"input": count}, axes=(1,), normalize=False)
        count = site.reshaped(count, (batch,))
    else:
        zero = site.constant([0], "int32")
        count = site.insert("broadcast", {"input": zero}, shape=(batch,))
    return _normal(site, total, 5, 6, _EPSILON)[0], count, total
