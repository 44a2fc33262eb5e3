"""Sequences of classes: the loss of connectionist temporal classification, beams traced back."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import shapes_differ
from lowering.graph import TensorType
from lowering.kernels.precision import widened
from lowering.ops import require, rules

_NEVER = -1e30  # the logarithm of a probability of 0, finite so that derivatives are


def _loss_type(
    logits: TensorType,
    logit_lengths: TensorType,
    labels: TensorType,
    label_lengths: TensorType,
    blank: int,
) -> TensorType:
    require.real(logits=logits)
    require.layout("[B,T,C]", logits=logits)
    require.layout("[B,L]", labels=labels)
    batch, _, classes = logits.shape
    integers = {"logit_lengths": logit_lengths, "labels": labels, "label_lengths": label_lengths}
    require.integer(**integers)
    for name in ("logit_lengths", "label_lengths"):
        require.shape(name, integers[name], (batch,), "it has a length for each sequence")
    if shapes_differ(labels.shape[:1], (batch,)):
        raise InvalidShape("'labels' must have a row for each sequence of 'logits'")
    if not 0 <= blank < classes:
        raise InvalidOperation(f"'blank' must be one of the {classes} classes, it is {blank}")
    return TensorType((batch,), logits.dtype)


@rules.rule("ctc_loss", _loss_type)
def ctc_loss(
    logits: Any, logit_lengths: Any, labels: Any, label_lengths: Any, blank: int,
    collapses: bool, merges: bool, unique: bool,
) -> Array:  # fmt: skip
    """Return -log of the probability of the labels of each sequence; infinite where it is 0.

    Summed over all paths of classes that give the labels once blanks are left out, and with
    `merges` equal neighbours are one. `collapses` makes equal neighbours among the labels one
    before, `unique` keeps the first of all equal ones.

    Source: Graves et al. 2006, Connectionist temporal classification, section 4.1.
    """
    x = jax.nn.log_softmax(widened(jnp.asarray(logits)), axis=2)
    places = jnp.asarray(labels)

    def loss(x: Array, steps: Array, labels: Array, count: Array) -> Array:
        count_of_labels = labels.shape[0]
        order = jnp.arange(count_of_labels)
        kept = order < count
        if unique:
            earlier = (labels[:, None] == labels[None]) & (order[None] < order[:, None])
            kept = kept & ~jnp.any(earlier, axis=1)
        elif collapses:
            kept = kept & ((order == 0) | (labels != jnp.roll(labels, 1)))
        labels = labels[jnp.argsort(~kept, stable=True)]
        count = jnp.sum(kept)
        states = jnp.arange(2 * count_of_labels + 1)
        is_blank = states % 2 == 0
        of = jnp.where(is_blank, blank, labels[jnp.minimum(states // 2, count_of_labels - 1)])
        may_stay = is_blank | merges
        # A blank may be left out between labels, but where it alone keeps equal ones apart.
        before = jnp.roll(of, 2)
        may_skip = ~is_blank & (states > 1) & ((of != before) | (not merges))
        start = jnp.where(states < 2, x[0, of], _NEVER)

        def step(sums: Array, given: tuple[Array, Array]) -> tuple[Array, None]:
            time, row = given
            one = jnp.where(states > 0, jnp.roll(sums, 1), _NEVER)
            two = jnp.where(may_skip, jnp.roll(sums, 2), _NEVER)
            stay = jnp.where(may_stay, sums, _NEVER)
            joined = jax.nn.logsumexp(jnp.stack([stay, one, two]), axis=0) + row[of]
            return jnp.where(time < steps, joined, sums), None

        sums, _ = lax.scan(step, start, (jnp.arange(1, x.shape[0]), x[1:]))
        last = jnp.where((states == 2 * count) | (states == 2 * count - 1), sums, _NEVER)
        total = jax.nn.logsumexp(last)
        return jnp.where(total < 0.1 * _NEVER, jnp.inf, -total)

    found = jax.vmap(loss)(x, jnp.asarray(logit_lengths), places, jnp.asarray(label_lengths))
    return found.astype(jnp.asarray(logits).dtype)


def _tree_type(
    tokens: TensorType, parents: TensorType, lengths: TensorType, end: TensorType
) -> TensorType:
    require.integer(tokens=tokens, parents=parents, lengths=lengths)
    require.one_integer(end=end)
    require.layout("[T,B,W]", tokens=tokens)
    require.shape("parents", parents, tokens.shape, "each token has a parent")
    require.shape("lengths", lengths, tokens.shape[1:2], "it has a length for each batch")
    return tokens


@rules.rule("gather_tree", _tree_type, not_differentiable="its operands are indices")
def gather_tree(tokens: Any, parents: Any, lengths: Any, end: Any) -> Array:
    """Return the tokens (steps,batch,beams) of each beam that is there at the last step.

    `parents` are the beams that a step's beams go on from. Behind the first `end` of a beam, and
    behind the length of a batch, all is `end`.
    """
    x, parents, end = jnp.asarray(tokens), jnp.asarray(parents), jnp.asarray(end).reshape(())
    steps, _, beams = x.shape
    lengths = jnp.minimum(jnp.asarray(lengths), steps)[:, None]
    start = jnp.broadcast_to(jnp.arange(beams, dtype=parents.dtype), x.shape[1:])

    def back(beam: Array, given: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        time, row, parent = given
        inside = time < lengths
        token = jnp.take_along_axis(row, beam, axis=1)
        before = jnp.take_along_axis(parent, beam, axis=1)
        return jnp.where(inside, before, beam), jnp.where(inside, token, end)

    _, found = lax.scan(back, start, (jnp.arange(steps), x, parents), reverse=True)
    ended = jnp.cumsum((found == end).astype(jnp.int32), axis=0) > 0
    return jnp.where(ended, end, found)
