"""Connectionist temporal classification, and beams traced back."""

from __future__ import annotations

from lowering.graph import Value
from nnef_jax.formats.openvino.layers import everywhere, opsets
from nnef_jax.formats.openvino.site import Site


@opsets("CTCGreedyDecoderSeqLen")
def _greedy_decoder(site: Site) -> list[Value]:
    """Return the classes of the best path without blanks, then -1, and how many there are.

    Of equal neighbours the first is taken with `merge_repeated`. The blank is the last class
    unless input 2 names another.
    """
    x, integer = site.tensor(0), site.graph.builder.integer
    _, steps, classes = site.known_shape()
    best = site.insert("argmax_reduce", {"input": x}, axes=(2,))
    best = site.cast(site.insert("squeeze", {"input": best}, axes=(2,)), integer)
    lengths = site.insert("unsqueeze", {"input": site.cast(site.tensor(1), integer)}, axes=(1,))
    places = site.places(steps, 1, 2)
    blank = site.integers(2)[0] if site.has(2) else classes - 1
    shown = site.insert("ne", {"x": best, "y": blank})
    shown = site.insert("and", {"x": shown, "y": site.insert("lt", {"x": places, "y": lengths})})
    if site.flag("merge_repeated", True):
        around = ((0, 0), (1, 0))
        before = site.insert("pad", {"input": best}, padding=around, border="constant", value=-1.0)
        window = {"axes": (1,), "begin": (0,), "end": (steps,), "stride": (1,)}
        before = site.insert("slice", {"input": before}, **window)
        shown = site.insert("and", {"x": shown, "y": site.insert("ne", {"x": best, "y": before})})
    ranks = {"condition": shown, "true_value": places, "false_value": steps}
    first = site.insert(
        "topk", {"input": site.insert("select", ranks)}, k=steps, axis=1, largest=False
    )
    order = first[1]
    packed = site.insert("gather_elements", {"input": best, "indices": order}, axis=1)
    ones = site.insert("cast", {"input": shown}, dtype=integer)
    count = site.insert("sum_reduce", {"input": ones}, axes=(1,), normalize=False)
    choices = {
        "condition": site.insert("lt", {"x": places, "y": count}),
        "true_value": packed,
        "false_value": -1,
    }
    found = site.emit("select", choices)
    count = site.emit("squeeze", {"input": count}, axes=(1,))
    return [
        site.cast(found, site.dtype("classes_index_type", "i32")),
        site.cast(count, site.dtype("sequence_length_type", "i32")),
    ]


@opsets("CTCLoss")
def _ctc_loss(site: Site) -> Value:
    """Return what the labels of each sequence cost: -log of their probability."""
    integer = site.graph.builder.integer
    given = {
        "logits": site.tensor(0),
        **{
            name: site.cast(site.tensor(i), integer)
            for i, name in enumerate(("logit_lengths", "labels", "label_lengths"), 1)
        },
    }
    blank = site.integers(4)[0] if site.has(4) else site.known_shape()[2] - 1
    return site.emit(
        "ctc_loss", given, blank=blank,
        collapses=site.flag("preprocess_collapse_repeated"),
        merges=site.flag("ctc_merge_repeated", True), unique=site.flag("unique"),
    )  # fmt: skip


@everywhere("GatherTree")
def _gather_tree(site: Site) -> Value:
    """Return the tokens of beams, traced back from the last step, [steps,batch,beams]."""
    integer = site.graph.builder.integer
    names = ("tokens", "parents", "lengths", "end")
    given = {name: site.cast(site.tensor(i), integer) for i, name in enumerate(names)}
    given["end"] = site.reshaped(given["end"], ())
    found = site.insert("gather_tree", given)
    dtype = site.dtype_of(0)
    if dtype == found.type.dtype:
        return site.emit("copy", {"x": found})
    return site.emit("cast", {"input": found}, dtype=dtype)
