"""The .bin beside a network: each part is checked against its end, nothing is copied."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lowering.errors import InvalidOperation
from nnef_jax.formats.openvino.document import CONSTANTS, Net

_SMALL = 1 << 15  # bytes of a constant: shapes, indices, ends of ranges have no more


@dataclass(slots=True, eq=False)
class Weights:
    """The bytes of the .bin, None where there is none; `name` is what errors call it."""

    data: memoryview | bytes | None
    name: str

    def __reduce__(self) -> tuple[Any, ...]:
        # By value: a pickle is read where the file may not be.
        return Weights, (None if self.data is None else bytes(self.data), self.name)

    def slice(self, offset: int, size: int) -> memoryview:
        """Return a part; raise InvalidOperation where there is none."""
        if self.data is None:
            raise InvalidOperation(
                f"its weights are in '{self.name}', which there is not",
                "it must be beside the .xml; load(..., weights=) says where else it is",
            )
        if offset < 0 or offset + size > len(self.data):
            raise InvalidOperation(
                f"its weights are the bytes {offset} to {offset + size} of '{self.name}', "
                f"which has {len(self.data)}",
                "the file is cut off, or of another network",
            )
        return memoryview(self.data)[offset : offset + size]

    def small_constants(self, net: Net) -> Iterator[bytes]:
        """Yield the bytes of the constants of a network and its bodies, but for large ones."""
        for layer in net.layers:
            if layer.kind in CONSTANTS:
                places = [(blob.offset, blob.size) for blob in layer.blobs.values()]
                given = [layer.attributes.get(name, "") for name in ("offset", "size")]
                if all(text.isdecimal() for text in given):
                    places.append((int(given[0]), int(given[1])))
                for offset, size in places:
                    if self.data is not None and size <= _SMALL:
                        yield bytes(self.data[offset : offset + size])
            for body in layer.bodies.values():
                yield from self.small_constants(body.net)
