"""The loss of connectionist temporal classification (CTC), and the paths of a beam search."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from lowering.errors import InvalidOperation, InvalidShape
from lowering.extents import shapes_differ
from lowering.graph import TensorType
from lowering.kernels.precision import widened
from lowering.ops import require, rules

# This number stands for the logarithm of probability 0, since infinity would have no derivatives.
_LOG_OF_ZERO = -1e30


def _loss_type(
    logits: TensorType,
    logit_lengths: TensorType,
    labels: TensorType,
    label_lengths: TensorType,
    blank: int,
) -> TensorType:
    """Check the arguments of `ctc_loss`, and return the type of its result."""
    require.floating(logits=logits)
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
    logits: Array, logit_lengths: Array, labels: Array, label_lengths: Array, blank: int,
    collapses: bool, merges: bool, unique: bool,
) -> Array:  # fmt: skip
    """Return -log p of each sequence, where p is the probability of its labels.

    `logits` has the shape (batch, time, classes), and `labels` has the shape (batch, labels). The
    lengths and the result have the shape (batch,). p is the sum of the probabilities of all paths
    of classes that become the labels in two steps. First, if `merges` is true, equal neighbours
    of the path are merged. Then blanks are removed. If p is 0, the result is infinite.

    The labels themselves are changed first. If `unique` is true, labels that are equal to an
    earlier label are removed. Otherwise, if `collapses` is true, equal neighbours among the
    labels are merged.

    Source: Graves et al. 2006, Connectionist temporal classification, section 4.1.
    """
    log_probabilities = jax.nn.log_softmax(widened(jnp.asarray(logits)), axis=2)

    def loss(log_rows: Array, step_count: Array, label_row: Array, length: Array) -> Array:
        """Return the loss of one sequence.

        `log_rows` has the shape (time, classes), of which only the first `step_count` rows are
        used. `label_row` has the shape (labels,), of which only the first `length` items are used.
        """
        most_labels = label_row.shape[0]
        labels, label_count = _reduced_labels(label_row, length, unique=unique, collapses=collapses)
        # A path goes through these states: a blank, the first label, a blank, the second label, ...
        states = jnp.arange(2 * most_labels + 1)
        is_blank = states % 2 == 0
        label_of_state = labels[jnp.minimum(states // 2, most_labels - 1)]
        class_of_state = jnp.where(is_blank, blank, label_of_state)
        may_stay = is_blank | merges
        # A path may skip the blank between two labels, unless the labels are equal and would merge.
        class_before_blank = jnp.roll(class_of_state, 2)
        labels_stay_apart = (class_of_state != class_before_blank) | (not merges)
        may_skip = ~is_blank & (states > 1) & labels_stay_apart
        # A path starts in the first blank or in the first label, which are the states 0 and 1.
        start = jnp.where(states < 2, log_rows[0, class_of_state], _LOG_OF_ZERO)

        def step(sums: Array, time_and_row: tuple[Array, Array]) -> tuple[Array, None]:
            """Add one time step to the log probabilities of all paths that end in each state."""
            time, row = time_and_row
            stayed = jnp.where(may_stay, sums, _LOG_OF_ZERO)
            advanced = jnp.where(states > 0, jnp.roll(sums, 1), _LOG_OF_ZERO)
            skipped = jnp.where(may_skip, jnp.roll(sums, 2), _LOG_OF_ZERO)
            arrivals = jnp.stack([stayed, advanced, skipped])
            new_sums = jax.nn.logsumexp(arrivals, axis=0) + row[class_of_state]
            return jnp.where(time < step_count, new_sums, sums), None

        later_times = jnp.arange(1, log_rows.shape[0])
        sums, _ = lax.scan(step, start, (later_times, log_rows[1:]))
        # A path ends in the last label, or in the blank after it. Label i has the state 2 * i + 1.
        is_end = (states == 2 * label_count) | (states == 2 * label_count - 1)
        total = jax.nn.logsumexp(jnp.where(is_end, sums, _LOG_OF_ZERO))
        # The logarithm of a possible path is far above this bound.
        is_impossible = total < 0.1 * _LOG_OF_ZERO
        return jnp.where(is_impossible, jnp.inf, -total)

    operands = (logit_lengths, labels, label_lengths)
    losses = jax.vmap(loss)(log_probabilities, *map(jnp.asarray, operands))
    return losses.astype(jnp.asarray(logits).dtype)


def _reduced_labels(
    labels: Array, count: Array, *, unique: bool, collapses: bool
) -> tuple[Array, Array]:
    """Move the remaining labels of a sequence to the front, and count the remaining labels.

    `labels` has the shape (labels,), and only the first `count` items are labels. `unique` and
    `collapses` are as in `ctc_loss`, and decide which labels remain. Returns all labels in the new
    order, and the number of remaining labels.
    """
    index = jnp.arange(labels.shape[0])
    is_label = index < count
    if unique:
        is_equal = labels[:, None] == labels[None]
        is_before = index[None] < index[:, None]
        is_label = is_label & ~jnp.any(is_equal & is_before, axis=1)
    elif collapses:
        differs_from_previous = (index == 0) | (labels != jnp.roll(labels, 1))
        is_label = is_label & differs_from_previous
    return labels[jnp.argsort(~is_label, stable=True)], jnp.sum(is_label)


def _tree_type(
    tokens: TensorType, parents: TensorType, lengths: TensorType, end: TensorType
) -> TensorType:
    """Check the arguments of `gather_tree`, and return the type of its result."""
    require.integer(tokens=tokens, parents=parents, lengths=lengths)
    require.one_integer(end=end)
    require.layout("[T,B,W]", tokens=tokens)
    require.shape("parents", parents, tokens.shape, "each token has a parent")
    require.shape("lengths", lengths, tokens.shape[1:2], "it has a length for each batch")
    return tokens


@rules.rule("gather_tree", _tree_type, not_differentiable="its operands are indices")
def gather_tree(tokens: Array, parents: Array, lengths: Array, end: Array) -> Array:
    """Return the tokens of the path that leads to each beam of the last step of a beam search.

    `tokens`, `parents` and the result have the shape (steps, batch, beams). Each beam continues a
    beam of the previous step, and `parents` has the number of that beam. After the first token
    `end` of a path, and from the step `lengths[batch]` on, all tokens are `end`.
    """
    x = jnp.asarray(tokens)
    parents = jnp.asarray(parents)
    end = jnp.asarray(end).reshape(())
    step_count, _, beam_count = x.shape
    lengths = jnp.minimum(jnp.asarray(lengths), step_count)[:, None]
    last_beams = jnp.broadcast_to(jnp.arange(beam_count, dtype=parents.dtype), x.shape[1:])

    def step_back(beam: Array, step: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        """Return the beam of the previous step and the token of this step, for each path.

        `step` has the number, the tokens and the parents of this step. `beam` has the shape
        (batch, beams).
        """
        time, step_tokens, step_parents = step
        is_inside = time < lengths
        token = jnp.take_along_axis(step_tokens, beam, axis=1)
        parent = jnp.take_along_axis(step_parents, beam, axis=1)
        return jnp.where(is_inside, parent, beam), jnp.where(is_inside, token, end)

    steps = (jnp.arange(step_count), x, parents)
    _, paths = lax.scan(step_back, last_beams, steps, reverse=True)
    has_ended = jnp.cumsum((paths == end).astype(jnp.int32), axis=0) > 0
    return jnp.where(has_ended, end, paths)
