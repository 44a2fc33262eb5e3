"""Connectionist temporal classification, and beams traced back."""

from __future__ import annotations

from lowering.graph import Value
from nnef_jax.formats.openvino.layer_site import LayerSite
from nnef_jax.formats.openvino.layers import everywhere, opsets


@opsets("CTCGreedyDecoderSeqLen")
def _greedy_decoder(site: LayerSite) -> list[Value]:
    """Return the classes of the best path without blanks, then -1, and how many there are.

    Of equal neighbours the first is taken with `merge_repeated`. The blank is the last class
    unless input 2 names another.
    """
    step = site.step
    _, steps, classes = site.known_shape()
    best = step.squeeze(step.argmax_reduce(site.tensor(0), axes=(2,)), axes=(2,))
    best = site.cast(best, site.integer)
    lengths = site.unsqueezed(site.whole(1), 1)
    places = site.places(steps, 1, 2)
    blank = site.integers(2)[0] if site.has(2) else classes - 1
    shown = step.and_(step.ne(best, blank), step.lt(places, lengths))
    if site.flag("merge_repeated", True):
        before = site.part(site.padded(best, {1: (1, 0)}, -1.0), 1, 0, steps)
        shown = step.and_(shown, step.ne(best, before))
    ranks = step.select(shown, places, steps)
    order = step.topk(ranks, k=steps, axis=1, largest=False)[1]
    packed = step.gather_elements(best, order, axis=1)
    count = site.count(shown, 1)
    found = site.last.select(step.lt(places, count), packed, -1)
    count = site.last.squeeze(count, axes=(1,))
    return [
        site.cast(found, site.dtype("classes_index_type", "i32")),
        site.cast(count, site.dtype("sequence_length_type", "i32")),
    ]


@opsets("CTCLoss")
def _ctc_loss(site: LayerSite) -> Value:
    """Return what the labels of each sequence cost: -log of their probability."""
    return site.last.ctc_loss(
        site.tensor(0), *(site.whole(i) for i in (1, 2, 3)),
        blank=site.integers(4)[0] if site.has(4) else site.known_shape()[2] - 1,
        collapses=site.flag("preprocess_collapse_repeated"),
        merges=site.flag("ctc_merge_repeated", True), unique=site.flag("unique"),
    )  # fmt: skip


@everywhere("GatherTree")
def _gather_tree(site: LayerSite) -> Value:
    """Return the tokens of beams, traced back from the last step, [steps,batch,beams]."""
    *given, end = (site.whole(i) for i in range(4))
    found = site.step.gather_tree(*given, site.reshaped(end, ()))
    dtype = site.dtype_of(0)
    if dtype == found.type.dtype:
        return site.last.copy(found)
    return site.last.cast(found, dtype=dtype)
