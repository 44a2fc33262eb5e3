"""Compute attention at once or in blocks of heads and queries, without keys that no query sees."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from lowering.batches import Axes, NotSeparableError, batch_axes, resized
from lowering.cpu.attention import FEW
from lowering.cpu.key_masks import Hidden, hidden_keys
from lowering.cpu.pending_view import View, full_array
from lowering.extents import ceil_div
from lowering.jaxpr_types import Variable
from lowering.program import Program

# A call reads only the first one, two, three or four quarters of the keys: the fewest quarters that
# have all visible keys. The program has a branch for each of these numbers. A loop over blocks
# compiles each branch once. With few queries, as in a step of a GPT, there is no loop, and each
# branch takes 0.1 s to compile in each layer. Therefore there are fewer branches for few queries.
_QUARTERS = (1, 2, 3, 4)
_QUARTERS_OF_FEW = (1, 2, 4)

# Scores of at most this number of bytes are computed at once. Larger scores are computed in blocks.
# The measured milliseconds of 12 heads of 64 items:
#   tokens  as written  this module
#      512         8.5          7.1
#     1024        68           29
#     2048       275          112
#     4096      1030          426
# This module computes 512 tokens at once. In blocks they would take 6.5 ms.
_MOST_BYTES_AT_ONCE = 16 << 20
_MOST_BYTES_OF_BLOCK = 9 << 20  # the most bytes that the scores of a block have

# A block has at most this number of queries. With 512 queries in a block, 12 heads at 1024 tokens
# take 44 ms. With 256 queries in a block, they take 24 ms.
_MOST_QUERIES = 256

Evaluate = Callable[[Program, Sequence[View]], list[View]]


class _Loop(NamedTuple):
    """A division of one axis into blocks.

    Heads and queries are computed by a loop over their blocks. Of the keys only the first block is
    read, without a loop.
    """

    axes: Axes  # maps each variable to the index of its axis of heads (or queries, or keys)
    extent: int  # the number of items along the axis
    size: int  # the number of items in a block


def attended(program: Program, views: Sequence[View], evaluate: Evaluate) -> View:
    """Return the result of an attention, from views of its queries, keys, values and masks.

    `evaluate` evaluates a program on views. Large attentions are computed in blocks.
    """
    loops = _loops(program)
    queries, *_ = program.arguments
    has_few_queries = queries.aval.shape[-2] < FEW
    may_skip_keys = program.is_alone and (loops or has_few_queries)
    hidden = hidden_keys(program) if may_skip_keys else None
    block = _Block(program, loops, hidden, evaluate)
    if loops:
        return _in_blocks(block, views)
    return block.result_of_visible_keys(views, block.key_count(views))


def _in_blocks(block: _Block, views: Sequence[View]) -> View:
    """Return the result of an attention, computed by a loop over its blocks.

    `views` are views of all queries, keys, values and masks. `block` computes a single block.
    """
    program = block.program
    loops = block.loops

    def block_views(starts: Array | NDArray[np.int32]) -> list[View]:
        """Return the views of the block that starts at `starts` along the axes of the loops."""
        parts: list[View] = []
        for view, variable in zip(views, program.arguments, strict=True):
            parts.append(_part(view, variable, zip(loops, starts, strict=True)))
        return parts

    def key_count_of_block(starts: Array) -> Array | None:
        return block.key_count(block_views(starts))

    starts_of_blocks = _starts_of_blocks(loops)
    # The numbers of visible keys are computed outside the loop. If the masks depend only on
    # parameters, these numbers are then computed once, before all calls.
    has_masks = block.hidden is not None
    key_counts = lax.map(key_count_of_block, starts_of_blocks) if has_masks else None
    # This is a block's result without data. Only its dtype and its order of axes are used.
    example = jax.eval_shape(lambda: block.result(block_views(starts_of_blocks[0])))
    (result,) = program.results
    loop_positions = [example.position(loop.axes[result]) for loop in loops]

    def iterate(
        array: Array, starts_and_count: tuple[Array | NDArray[np.int32], Array | None]
    ) -> tuple[Array, None]:
        """Write the result of one block into the array of all results."""
        starts, key_count = starts_and_count
        corner: list[np.int32 | Array] = [np.int32(0)] * array.ndim  # where the block begins
        for position, start in zip(loop_positions, starts, strict=True):
            corner[position] = start
        part = full_array(block.result_of_visible_keys(block_views(starts), key_count))
        return lax.dynamic_update_slice(array, part, corner), None

    shape = tuple(result.aval.shape)
    initial = jnp.zeros([shape[axis] for axis in example.order], example.array.dtype)
    array, _ = lax.scan(iterate, initial, (starts_of_blocks, key_counts))
    return View(array, example.order, shape)


def _starts_of_blocks(loops: Sequence[_Loop]) -> NDArray[np.int32]:
    """Return the start of each block along the axes of all loops: an array (blocks, loops).

    For example, blocks of 4 among 10 items start at 0, 4 and 6.
    """
    starts_by_loop: list[list[int]] = []
    for loop in loops:
        last_start = loop.extent - loop.size  # the last block may overlap the block before
        starts_by_loop.append([*range(0, last_start, loop.size), last_start])
    return np.array(list(itertools.product(*starts_by_loop)), np.int32)


def _loops(program: Program) -> list[_Loop]:
    """Return the loops over blocks of an attention, or [] if all scores fit the caches.

    Blocks divide the queries. If the program runs on one device, blocks divide the heads too.
    """
    queries, keys, values, *_ = program.arguments
    shape = queries.aval.shape
    scores = program.equations[0].outvars[0].aval
    if scores.size * scores.dtype.itemsize <= _MOST_BYTES_AT_ONCE:
        return []
    # Heads may be sharded over several devices, so that only a program on one device divides them.
    divided_head_rank = len(keys.aval.shape) - 2 if program.is_alone else 0
    # A row has the scores of one query. Along divided axes of heads it has one head, and along
    # other axes of heads it has all heads.
    row_items = math.prod((*shape[divided_head_rank:-2], keys.aval.shape[-2]))
    row_bytes = row_items * scores.dtype.itemsize
    most_rows = max(1, _MOST_BYTES_OF_BLOCK // row_bytes)  # the most rows of a block
    # A candidate is a possible loop. It has a dict that maps operands to the axis of the loop, and
    # a number: a block has at most this number of items along the axis. The first candidate divides
    # the queries. The later candidates divide the heads.
    candidates = [({queries: len(shape) - 2}, _MOST_QUERIES)]
    for axis in reversed(range(divided_head_rank)):
        candidates.append((dict.fromkeys((queries, keys, values), axis), most_rows))
    loops: list[_Loop] = []
    # A block of 64 queries and 3 heads has 192 rows. If a block has at most 256 rows and 64
    # queries, it has at most 256 / 64 = 4 heads.
    rows_left = most_rows
    for seed, most_items in candidates:
        extent = shape[seed[queries]]
        block_count = ceil_div(extent, min(most_items, rows_left, extent))
        try:
            axes = batch_axes(program, seed, follow=program.arguments)
        except NotSeparableError:
            continue
        size = ceil_div(extent, block_count)
        rows_left = max(1, rows_left // size)
        if block_count > 1:
            loops.append(_Loop(axes, extent, size))
    return loops


@dataclass(frozen=True, slots=True)
class _Block:
    """Computes an attention for one block of queries and heads, or for all queries and heads."""

    program: Program
    loops: Sequence[_Loop]
    hidden: Hidden | None
    evaluate: Evaluate

    def result(self, views: Sequence[View], first_keys: _Loop | None = None) -> View:
        """Return the attention's result for a block, from views of the block's operands.

        If `first_keys` is not None, the views have only the first `first_keys.size` keys.
        """
        loops = self.loops if first_keys is None else [*self.loops, first_keys]
        changes = [(loop.axes, loop.size) for loop in loops]
        (view,) = self.evaluate(resized(self.program, *changes), views)
        return view

    def result_of_visible_keys(self, views: Sequence[View], count: Array | None) -> View:
        """Return the attention's result for a block, without the keys after the last visible key.

        `count` is the number of keys up to the last visible key, or None to read all keys. The
        result is computed from one, two, three or four quarters of the keys: the fewest quarters
        that have `count` keys. Without loops all keys are read instead of three quarters.
        """
        if self.hidden is None or count is None:
            return self.result(views)
        axes = self.hidden.axes
        _, keys, *_ = self.program.arguments
        extent = keys.aval.shape[-2]
        quarters = _QUARTERS if self.loops else _QUARTERS_OF_FEW
        sizes = [ceil_div(extent * i, 4) for i in quarters]

        def branch(size: int) -> Callable[..., View]:
            """Return a function that computes the result from the first `size` keys."""
            first_keys = _Loop(axes, extent, size)

            def attend(views: Sequence[View]) -> View:
                pairs = zip(views, self.program.arguments, strict=True)
                parts = [_part(view, variable, [(first_keys, 0)]) for view, variable in pairs]
                return self.result(parts, first_keys)

            return attend

        # This is the index of the first size that is not below `count`. For the sizes (4, 8, 16)
        # and the count 6 the index is 1.
        index = sum((count > size).astype(np.int32) for size in sizes[:-1])
        return lax.switch(index, list(map(branch, sizes)), views)

    def key_count(self, views: Sequence[View]) -> Array | None:
        """Return the number of keys up to the last key that a query sees, or None without masks.

        `views` are the views of the block's operands.
        """
        if self.hidden is None:
            return None
        scores, masked = self.hidden.scores, self.hidden.masked
        key_axis = self.hidden.axes[masked]
        # The masks are evaluated for scores of 0, since the finite scores of a key do not determine
        # whether a mask hides the key.
        masks = self.program.part([scores, *self.program.arguments], [masked])
        masks_of_block = resized(masks, *((loop.axes, loop.size) for loop in self.loops))
        shape = masks_of_block.arguments[0].aval.shape
        rank = len(shape)
        # The array has a single 0, which the view repeats along all axes of the scores.
        zero = jnp.zeros((1,) * rank, scores.aval.dtype)
        zeros = View(zero, tuple(range(rank)), shape, is_early=True)
        (view,) = self.evaluate(masks_of_block, [zeros, *views])
        key_position = view.position(key_axis)
        is_visible = view.array != -jnp.inf
        other_positions = [i for i in range(is_visible.ndim) if i != key_position]
        is_key_visible = is_visible.any(other_positions)
        # Keys are numbered from 1 on, so that the number of the last visible key is the count.
        numbers = jnp.arange(1, view.shape[key_axis] + 1, dtype=np.int32)
        return jnp.max(jnp.where(is_key_visible, numbers, 0))


def _part(view: View, variable: Variable, starts: Iterable[tuple[_Loop, Array | int]]) -> View:
    """Return the part of a view that belongs to one block.

    `variable` is the operand of the view. `starts` has pairs of a loop and the start of the
    block along the loop's axis.
    """
    array = view.array
    shape = list(view.shape)
    for loop, start in starts:
        axis = loop.axes.get(variable)
        if axis is None:
            continue
        shape[axis] = loop.size
        position = view.position(axis)
        repeats_an_item = array.shape[position] == 1
        if not repeats_an_item:
            array = lax.dynamic_slice_in_dim(array, start, loop.size, position)
    return View(array, view.order, tuple(shape), view.is_early)
