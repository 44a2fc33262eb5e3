"""Solves for the shapes of a network's inputs, given the shapes of tensors inside it.

Flattening may need the shapes of the network's inputs, but a part that was cut out knows only the
shapes of its own inputs. The network is flattened for a guess, the resulting shapes at the cut are
compared with those of the part's inputs, and the guess is improved by Newton's method. Extents are
integers, so slopes are measured as differences, and guesses are rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from lowering.extents import UNKNOWN, Shape, show
from lowering.graph import Graph
from nnef_jax.errors import InputError, NnefError
from nnef_jax.formats.base import Options
from nnef_jax.limits import Meter
from nnef_jax.reading.network import Network

# Newton's method makes at most this many steps. One step is enough if the extents depend linearly
# on one another.
_MOST_GUESSES = 8
# To measure a slope, an extent is multiplied by these factors, one after the other, until other
# extents change.
_SLOPE_FACTORS = (0.5, 2, 8, 64)

# `_has_symbol` replaces every symbol by this extent. An extent without a symbol stays unknown.
_ANY_EXTENT = 7

# The values of open extents. A key is the document's symbol for an open extent, or `input[axis]` if
# the extent has no symbol.
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Solver:
    """A solver that finds the graph of a part for new shapes of the part's inputs.

    Args:
        network: the network from which the part is cut.
        cut: a function from a graph of the network to the part's graph.
        described: a function from a graph to an object. Two graphs are equal if their objects are
            equal.
    """

    network: Network
    cut: Callable[[Graph], Graph]
    described: Callable[[Graph], object]

    def solve(self, shapes: Sequence[Shape], meter: Meter) -> Graph:
        """Return the part's graph for inputs of the shapes `shapes`.

        Newton's method finds the open extents of the network's inputs that lead to `shapes`. The
        slopes for an open extent come from the part's shapes at two values of the extent. Each step
        is a least-squares solution, rounded to integers.

        Raises InputError if no open extents lead to `shapes`. Also raises InputError if several
        open extents lead to `shapes`, but to different graphs.
        """
        target = list(chain.from_iterable(shapes))
        sizes = self._first_guess(target)
        for _ in range(_MOST_GUESSES):
            part = self._part(sizes, meter)
            if _extents(part) == target:
                self._require_unique(sizes, part, meter)
                return part
            slopes = [self._slopes(sizes, name, part, meter) for name in sizes]
            # The Jacobian has a row for each extent of the part's inputs, and a column for each
            # open extent of the network.
            jacobian = np.transpose(slopes)
            residual = np.subtract(target, _extents(part))
            step, *_ = np.linalg.lstsq(jacobian, residual, rcond=None)
            solution = np.add(list(sizes.values()), step)
            # An extent is an integer, and not negative.
            rounded = np.maximum(np.rint(solution), 0).astype(int).tolist()
            next_sizes = dict(zip(sizes, rounded, strict=True))
            if next_sizes == sizes:
                # The extents are no solution, and further steps would not change them.
                break
            sizes = next_sizes
        shown_shapes = ", ".join(map(show, shapes))
        raise InputError(
            f"no shapes of the network's inputs make the part's {shown_shapes}",
            hint="give them by load(..., input_shapes=...) before the network is cut",
        )

    def _first_guess(self, target: Sequence[int]) -> dict[str, int]:
        """Return a dict from names of the network's open extents to guesses.

        Each open extent is guessed to be the largest extent in `target`.
        """
        largest = max(target, default=1)
        sizes: dict[str, int] = {}

        def guess_size(name: str) -> int:
            """Store the guess for an open extent in `sizes`. Return UNKNOWN, which is not used."""
            sizes[name] = largest
            return UNKNOWN

        # `_shapes` calls `guess_size` with the name of each open extent. The resulting shapes are
        # not used.
        self._shapes(guess_size)
        return sizes

    def _slopes(self, sizes: Sizes, name: str, part: Graph, meter: Meter) -> Sequence[float]:
        """Return the slope of each extent of the part's inputs with respect to an open extent.

        For example, if the open extent 4 leads to the extents (2, 3), and 8 leads to (4, 3), the
        slopes are (0.5, 0). `name` is the name of the open extent. `sizes` are all open extents of
        the network, and `part` is the part for them.
        """
        extents = _extents(part)
        size = sizes[name]
        for factor in _SLOPE_FACTORS:
            changed_size = max(int(size * factor), 1)
            if changed_size == size:
                continue
            changed_part = self._part_if_valid({**sizes, name: changed_size}, meter)
            if changed_part is None:
                continue
            changed_extents = _extents(changed_part)
            if changed_extents != extents:
                difference = np.subtract(changed_extents, extents)
                return (difference / (changed_size - size)).tolist()
        return [0.0] * len(extents)

    def _require_unique(self, sizes: Sizes, part: Graph, meter: Meter) -> None:
        """Raise InputError if other open extents give the same input shapes, but another graph.

        `sizes` are the open extents of the network, and `part` is the part for these extents.
        """
        for name, size in sizes.items():
            # Only a few other values of the extent are tried.
            for changed_size in (size - 1, size + 1, 2 * size + 2):
                if changed_size <= 0:
                    continue
                changed_part = self._part_if_valid({**sizes, name: changed_size}, meter)
                if changed_part is None or _extents(changed_part) != _extents(part):
                    continue
                if self.described(changed_part) != self.described(part):
                    raise InputError(
                        f"the part depends on '{name}', which the shapes of its inputs leave open",
                        hint="give it by load(..., input_shapes=...) before the network is cut",
                    )

    def _part_if_valid(self, sizes: Sizes, meter: Meter) -> Graph | None:
        """Return the part for the open extents `sizes`, or None if the network rejects them."""
        try:
            return self._part(sizes, meter)
        except NnefError:
            return None

    def _part(self, sizes: Sizes, meter: Meter) -> Graph:
        """Return the part for the open extents `sizes`. Raises NnefError for impossible extents."""
        network = self.network
        shapes = self._shapes(sizes.__getitem__)
        options: Options = replace(
            network.options,
            input_shapes={**network.options.input_shapes, **shapes},
            # Each guess has a new meter, and may take as many steps as a call.
            meter=Meter(meter.limits),
        )
        return self.cut(network.frontend.flatten(options))

    def _shapes(self, size: Callable[[str], int]) -> dict[str, list[int]]:
        """Return a dict from names of the network's inputs to shapes, for values of open extents.

        `size` is a function from the name of an open extent to its value.
        """
        network = self.network
        shapes: dict[str, list[int]] = {}
        symbolic_shapes = network.frontend.symbolic_shapes(size)
        for value in network.graph.inputs:
            shape = list(value.type.shape)
            symbolic_shape = symbolic_shapes.get(value.name, ())
            for axis, extent in enumerate(shape):
                if extent is not UNKNOWN:
                    continue
                if axis < len(symbolic_shape) and _has_symbol(network, value.name, axis):
                    shape[axis] = symbolic_shape[axis]
                else:
                    shape[axis] = size(f"{value.name}[{axis}]")
            shapes[value.name] = shape
        return shapes


def _has_symbol(network: Network, name: str, axis: int) -> bool:
    """Tell whether the document has a symbol for the extent of axis `axis` of an input."""
    shapes = network.frontend.symbolic_shapes(lambda _: _ANY_EXTENT)
    extent = shapes[name][axis]  # computed from `_ANY_EXTENT` if there is a symbol
    return extent not in (UNKNOWN, 0)


def _extents(part: Graph) -> list[int]:
    """Return the extents of all inputs of a part, one after the other."""
    extents: list[int] = []
    for value in part.inputs:
        extents += value.type.shape
    return extents
