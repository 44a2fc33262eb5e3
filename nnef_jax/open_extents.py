"""Finds the shapes of a network's inputs by those of tensors inside it.

How a network is flattened may depend on extents of its inputs. A part that has other inputs knows
them by what they make of these: the network is flattened for guesses, which get better by secants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lowering.extents import UNKNOWN, Shape, show
from lowering.graph import Graph
from nnef_jax.errors import InputError, NnefError
from nnef_jax.formats.base import Options
from nnef_jax.limits import Meter
from nnef_jax.network import Network

_GUESSES = 8  # each is exact where extents are sums and multiples of those of the inputs
_FACTORS = (0.5, 2, 8, 64)  # by which an extent is changed to see what depends on it

Sizes = Mapping[str, int]  # of symbols of the document, else of open extents `input[axis]`


@dataclass(frozen=True)
class Solver:
    """Flattens a part of a network for shapes of the part's inputs.

    `cut` makes the part of the network's graph, `described` tells all that a graph depends on.
    """

    whole: Network
    cut: Callable[[Graph], Graph]
    described: Callable[[Graph], object]

    def solve(self, wanted: Sequence[Shape], meter: Meter) -> Graph:
        """Return the part where its inputs have these shapes.

        Raises InputError where no shapes of the network's inputs make them, or several.
        """
        target = [extent for shape in wanted for extent in shape]
        sizes = self._start(target)
        for _ in range(_GUESSES):
            part = self._part(sizes, meter)
            if _extents(part) == target:
                self._require_told(sizes, part, meter)
                return part
            slopes = [self._slopes(sizes, name, part, meter) for name in sizes]
            lacking = np.subtract(target, _extents(part))
            change = np.linalg.lstsq(np.transpose(slopes), lacking, rcond=None)[0]
            moved = np.maximum(np.rint(np.add([*sizes.values()], change)), 0)
            better = dict(zip(sizes, moved.astype(int).tolist(), strict=True))
            if better == sizes:
                break
            sizes = better
        raise InputError(
            f"no shapes of the network's inputs make the part's {', '.join(map(show, wanted))}",
            hint="give them by load(..., input_shapes=...) before the network is cut",
        )

    def _start(self, target: Sequence[int]) -> dict[str, int]:
        """Return the first guess: the largest extent for all of them."""
        names: dict[str, None] = {}

        def noted(name: str) -> int:
            names[name] = None
            return UNKNOWN

        self._shapes(noted)
        return dict.fromkeys(names, max(target, default=1))

    def _slopes(self, sizes: Sizes, name: str, part: Graph, meter: Meter) -> Sequence[float]:
        """Return by how much the extents of the part's inputs change with an open extent."""
        before, size = _extents(part), sizes[name]
        for other in (max(int(size * factor), 1) for factor in _FACTORS):
            moved = self._perhaps({**sizes, name: other}, meter) if other != size else None
            if moved is not None and _extents(moved) != before:
                return (np.subtract(_extents(moved), before) / (other - size)).tolist()
        return [0.0] * len(before)

    def _require_told(self, sizes: Sizes, part: Graph, meter: Meter) -> None:
        """Refuse a part that is another one for other sizes, with the same inputs."""
        for name, size in sizes.items():
            for other in (size - 1, size + 1, 2 * size + 2):
                moved = self._perhaps({**sizes, name: other}, meter) if other > 0 else None
                if moved is None or _extents(moved) != _extents(part):
                    continue
                if self.described(moved) != self.described(part):
                    raise InputError(
                        f"the part depends on '{name}', which the shapes of its inputs do not tell",
                        hint="give it by load(..., input_shapes=...) before the network is cut",
                    )

    def _perhaps(self, sizes: Sizes, meter: Meter) -> Graph | None:
        """Return the part for some sizes, None where the network does not take them."""
        try:
            return self._part(sizes, meter)
        except NnefError:
            return None

    def _part(self, sizes: Sizes, meter: Meter) -> Graph:
        whole = self.whole
        shapes = self._shapes(sizes.__getitem__)
        options: Options = replace(
            whole.options,
            input_shapes={**whole.options.input_shapes, **shapes},
            meter=Meter(meter.limits),  # each guess has a budget of its own, as a call has
        )
        return self.cut(whole.frontend.flatten(options))

    def _shapes(self, size: Callable[[str], int]) -> dict[str, list[int]]:
        """Return the shapes of the network's inputs, given the sizes of what is open."""
        inputs = self.whole.graph.inputs
        symbolic: Mapping[str, Sequence[Any]] = self.whole.frontend.symbolic_shapes(size)
        shapes: dict[str, list[int]] = {}
        for value in inputs:
            shape = list(value.type.shape)
            said = symbolic.get(value.name, ())
            for axis, extent in enumerate(shape):
                if extent is UNKNOWN:
                    by_symbols = axis < len(said) and _has_symbol(self.whole, value.name, axis)
                    shape[axis] = said[axis] if by_symbols else size(f"{value.name}[{axis}]")
            shapes[value.name] = shape
        return shapes


def _has_symbol(whole: Network, name: str, axis: int) -> bool:
    return whole.frontend.symbolic_shapes(lambda _: 7)[name][axis] not in (UNKNOWN, 0)


def _extents(part: Graph) -> list[int]:
    return [extent for value in part.inputs for extent in value.type.shape]
