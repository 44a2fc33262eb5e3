"""Unusual values, and shared helpers to change lists and bytes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
INTEGERS = (
    0, 1, -1, 2, 3, 4, 5, 7, -2, -5, 100, 255, 1 << 16, (1 << 31) - 1, 1 << 31, -(1 << 31),
    1 << 32, 1 << 40, -(1 << 40), 1 << 62, (1 << 63) - 1, -(1 << 63),
)  # fmt: skip
REALS = (
    0.0, -0.0, 0.5, 1.0, -1.0, 1.5, -1.5, 1e-45, 1e-30, 1e-9, 2.0**31, 1e30, -1e30, 3e38, 1e308,
    -1e308, float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
BEYOND = ("9223372036854775808", "18446744073709551616", "99999999999999999999", "1e400")
FINITE = (*map(str, INTEGERS), *BEYOND, *(repr(x) for x in REALS[:-3]))
NUMBERS = (*FINITE, "inf", "-inf", "nan")


def changed_list(items: Sequence[T], other: Callable[[], T], chance: random.Random) -> list[T]:
    """Return items with one replaced, removed or repeated, or all of them, or shuffled."""
    items, at = list(items), chance.randrange(len(items) + 1)
    match chance.randrange(7):
        case 0 | 1 if at < len(items):
            items[at] = other()
        case 2:
            del items[at : at + 1]
        case 3:
            items.insert(at, items[at - 1] if items and chance.random() < 0.5 else other())
        case 4:
            chance.shuffle(items)
        case 5:
            items = [other()] * len(items)
        case _:
            items.append(other())
    return items


def changed_bytes(content: bytes, chance: random.Random) -> bytes:
    """Return bytes of which some are inverted, replaced, removed, repeated, moved or cut off."""
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at, other = (chance.randrange(len(changed) + 1) for _ in range(2))
        first, last = min(at, other), max(at, other)
        length = chance.choice((1, 2, 4, 8, 16, 64))
        match chance.randrange(10):
            case 0 | 1 if at < len(changed):
                changed[at] ^= 1 << chance.randrange(8)
            case 2 | 3 if at < len(changed):
                changed[at] = chance.choice((0, 1, 7, 8, 127, 128, 255, chance.randrange(256)))
            case 4:
                del changed[at : at + length]
            case 5:
                changed[at:at] = changed[first : min(last, first + 64)]
            case 6:
                width = chance.choice((2, 4, 8))
                value = chance.choice((0, 1, 2**31, 2**63, 2 ** (8 * width) - 1))
                changed[at : at + width] = (value % 2 ** (8 * width)).to_bytes(width, "little")
            case 7:
                changed[at:at] = changed[at : at + length] * chance.choice((1, 100))
            case 8:
                changed[at : at + length] = chance.choice((b"\0", b"\xff")) * length
            case _:
                del changed[first : last if chance.random() < 0.3 else first + 1]
    return bytes(changed)
