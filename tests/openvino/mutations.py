"""Small networks of OpenVINO that are right, and changes that make them wrong."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from tests.openvino.documents import Writer

_VALUES = (
    "0", "-1", "1", "2", "3", "1,1", "2,2,2", "", "x", "nan", "inf", "1e30", "-5", "99999999",
    "4294967296", "9223372036854775807", "true", "1.5", "0,0", "7,7", "max", "avg", "same_upper",
    "-1,-1", "0,1,2,3", "?", "...", "1..3", "i64", "u4", "nf4", "boolean",
)  # fmt: skip
_VALUE = re.compile(r'="([^"]*)"')
_TYPE = re.compile(r'type="([^"]*)"')
_DIM = re.compile(r"<dim>([^<]*)</dim>")
_PART = re.compile(
    r'<dim>[^<]*</dim>|<edge[^>]*/>|<port id="\d+"[^>]*/>| \w+="[^"]*"|<data[^>]*/>'
    r"|<input>.*?</input>|<output>.*?</output>|<blobs>.*?</blobs>",
    re.DOTALL,
)
_CHANGES = (
    *[(_VALUE, "set")] * 3,
    (_DIM, "set"),
    (_PART, "cut"),
    (_TYPE, "move"),
    (_DIM, "twice"),
)


def seeds() -> Iterator[tuple[str, bytes]]:
    """Yield networks of several versions, with loops, states, codes and weights as blobs."""
    from tests.openvino.test_conversion import largest, loop
    from tests.openvino.test_documents import modern, old, packed_matrices
    from tests.openvino.test_names import named

    nets: list[Writer] = [modern(), *(old(version) for version in (2, 5, 7)), largest(), loop()]
    nets += [packed_matrices(16)[0], named("a,b", "c"), _windows(5), _windows(11)]
    yield from ((net.text(), bytes(net.data)) for net in nets)


def _windows(version: int) -> Writer:
    """A pool, a reshape, a concatenation and a softmax."""
    net = Writer(version)
    x = net.input("x", (1, 2, 4, 4))
    given = {"kernel": "2,2", "strides": "2,2", "pads_begin": "0,0", "pads_end": "0,0"}
    if version < 10:
        pool = net.layer("Pooling", [x], [(1, 2, 2, 2)], attributes=given | {"pool-method": "max"})
        flat = net.layer("Flatten", [pool], [(1, 8)], attributes={"axis": 1})
        box = {"min_size": "2", "max_size": "3", "aspect_ratio": "2", "offset": "0.5", "step": "1"}
        net.layer("PriorBox", [pool, x], [(1, 2, 64)], attributes=box | {"variance": "0.1"})
    else:
        pool = net.layer("MaxPool", [x], [(1, 2, 2, 2)], attributes=given)
        shape = net.constant([1, -1], "shape", "i64")
        flat = net.layer("Reshape", [pool, shape], [(1, 8)], attributes={"special_zero": "true"})
    both = net.layer("Concat", [flat, flat], [(1, 16)], attributes={"axis": 1})
    return net.result(net.layer("SoftMax", [both], [(1, 16)], attributes={"axis": 1}))


def mutated(text: str, chance: random.Random) -> str:
    """Return a text with values, extents, types or parts changed, removed or repeated."""
    for _ in range(chance.randint(1, 3)):
        pattern, kind = chance.choice(
            [(_VALUE, "set")] * 3
            + [(_DIM, "set"), (_PART, "cut"), (_TYPE, "move"), (_DIM, "twice")]
        )
        found = list(pattern.finditer(text))
        if not found:
            continue
        place = chance.choice(found)
        start, end = (place.start(1), place.end(1)) if pattern.groups else place.span()
        new = {
            "set": lambda: chance.choice(_VALUES),
            "cut": lambda: "",
            "move": lambda: chance.choice(found)[1],  # noqa: B023
            "twice": lambda: f"{place[1]}</dim><dim>{place[1]}",  # noqa: B023
        }[kind]()
        text = text[:start] + new + text[end:]
    return text
