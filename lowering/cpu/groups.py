"""Join the narrow groups of a convolution into fewer and wider groups.

The filters of the joined groups have zeros between the items of different groups.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import Array

# The convolutions of at most this number of groups are unrolled. Each convolution takes 0.03 s to
# compile. A loop over the groups takes up to twice as long to run as unrolled convolutions: two
# items with 10 groups of 24 channels at 28x28 positions take 6.8 ms in a loop, and 3.1 ms by
# unrolled convolutions.
UNROLLED_GROUPS = 16

# Each group of at least _WIDE channels has a separate convolution. Narrower groups are joined to
# groups of at most WIDEST channels. The table has the measured milliseconds of 3x3 windows: without
# joining, with 2, 4 or 8 groups joined to one, and by oneDNN. More than 16 groups that are not
# joined are computed in a loop.
#   groups  channels  positions   not joined     2     4     8   oneDNN
#       32         4      56x56          4.6         2.0   2.2      0.5
#       32         8      28x28          1.7   1.0   1.2   2.0      0.3
#       32        16      14x14          1.0   0.7   1.1   1.4      0.2
#       32        32        7x7          0.9   0.8   1.0            0.3
#       16        24      14x14          0.7   0.9   1.3            0.3
_WIDE, WIDEST = 16, 32

# If a group has fewer channels than this, it is computed by a sum of depthwise convolutions, one
# for each channel of a group. The table has the measured milliseconds of joined groups and of such
# sums:
#   groups  channels  positions  window  batch   joined    sum
#       32         4      56x56     3x3      1     1.26   0.49
#       24         4      28x28     5x5      1     0.63   0.30
#       32         2      28x28              1     0.15   0.05
#       23         2      48x48     7x7      4    10.0    2.5
#      224         2        160       7      1     0.35   0.06
#        8         8      56x56              1     0.45   0.46
_NARROWEST = 8
# A sum of depthwise convolutions has at most this number of terms: one term for each cell and
# channel of a group. A sum of 343 terms takes 0.87 s to compile.
_MOST_TERMS = 128

# The gradient by the filter takes some items of the batch at a time. Three or more items are taken
# only if they have at most this number of bytes together. The table has the measured milliseconds
# of 3x3 windows with all items, two items and four items at a time:
#   groups  channels  positions  batch   all    2    4
#       32         4      56x56      8    90   37   46
#       32         8      28x28      8    38   19   30
#       32        16      14x14      8    21   11   12
#        4        24      28x28     16    24   18   11
# Groups of 32 channels at 7x7 positions are not joined. They take 6 ms with all items at a time,
# and 8 ms in parts.
_MOST_BYTES_AT_A_TIME = 7 << 19


def is_by_depthwise(filter: Array, groups: int) -> bool:
    """Tell whether a grouped convolution is best computed by depthwise convolutions.

    A sum of depthwise convolutions reads a channel once for each result of its group. For
    groups with many results, products are faster: 2 groups of 4 inputs and 256 results take 1.0
    ms by products, and 6.3 ms by depthwise convolutions.
    """
    *size, depth, count = filter.shape
    is_small = depth < _NARROWEST and math.prod(size) * depth <= _MOST_TERMS
    input_count = depth * groups
    return is_small and count <= 2 * input_count


def joined_at_a_time(depth: int, groups: int) -> int:
    """Return the number of groups that are joined to one group. A group has `depth` channels.

    Groups of 16 to 32 channels are best. The smallest groups of this range are taken, unless there
    would be too many groups to unroll.
    """
    counts = [n for n in range(1, groups + 1) if groups % n == 0 and n * depth <= WIDEST]
    if not counts:
        return 1  # the groups are wide already
    wide_counts = [count for count in counts if count * depth >= _WIDE]
    if not wide_counts:
        return max(counts)
    # The counts ascend. The first count that leaves few enough groups to unroll is taken.
    for count in wide_counts:
        if groups // count <= UNROLLED_GROUPS:
            return count
    return max(wide_counts)


def joined(filter: Array, groups: int, count: int) -> Array:
    """Return a filter with fewer and wider groups, for the same convolution as `filter`.

    `filter` has `groups` groups, and the shape (*window, channels of a group, outputs). Each group
    of the returned filter joins `count` groups. The joined group has `count` times as many
    channels, with zeros between the items of different groups.
    """
    if count == 1:
        return filter
    *size, depth, outputs = filter.shape
    # The axes are (*window, input groups, channels, joined groups, output groups, outputs of a
    # group). `where` broadcasts the axis of input groups to `count` items.
    parts = filter.reshape(*size, 1, depth, groups // count, count, outputs // groups)
    window_ones = (1,) * len(size)
    diagonal = np.eye(count, dtype=bool).reshape(*window_ones, count, 1, 1, count, 1)
    blocks = jnp.where(diagonal, parts, np.array(0, filter.dtype))
    return blocks.reshape(*size, count * depth, outputs)


def fewest_wide(depth: int, groups: int) -> int:
    """Return the smallest number of groups that have at least 16 channels together.

    The number is a divisor of `groups`, the number of all groups. A group has `depth` channels. If
    all groups have fewer than 16 channels together, the result is `groups`.
    """
    for count in range(1, groups + 1):
        if groups % count == 0 and count * depth >= _WIDE:
            return count
    return groups


def items_at_a_time(batch: int, size: int) -> int:
    """Return the number of items of a batch that are computed at a time.

    This number is a divisor of `batch`. An item has `size` bytes. Two items are allowed even if
    they have many bytes.
    """
    counts = [count for count in range(1, batch + 1) if batch % count == 0]
    allowed = [n for n in counts if n <= 2 or n * size <= _MOST_BYTES_AT_A_TIME]
    return max(allowed)
