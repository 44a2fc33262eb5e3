"""The .bin beside a network: each part is checked against its end, nothing is copied."""

from __future__ import annotations

from dataclasses import dataclass

from lowering.errors import InvalidOperation


@dataclass(slots=True, eq=False)
class Weights:
    """The bytes of the .bin, None where there is none; `name` is what errors call it."""

    data: memoryview | None
    name: str

    def slice(self, offset: int, size: int) -> memoryview:
        """Return a part; raise InvalidOperation where there is none."""
        if self.data is None:
            raise InvalidOperation(
                f"its weights are in '{self.name}', which there is not",
                "it must be beside the .xml; load(..., weights=) says where else it is",
            )
        if offset + size > len(self.data):
            raise InvalidOperation(
                f"its weights are the bytes {offset} to {offset + size} of '{self.name}', "
                f"which has {len(self.data)}",
                "the file is cut off, or of another network",
            )
        return self.data[offset : offset + size]
