"""Small networks of OpenVINO that are right, with other parts or other bytes.

A change of a part keeps the XML well formed: the reader itself has to see the damage.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np

from tests.fuzz import Kind
from tests.fuzz.draw import INTEGERS, NUMBERS, REALS, changed_bytes, changed_list
from tests.fuzz.networks import attempt
from tests.helpers import tar
from tests.openvino.documents import Writer

WORDS = (
    "", "x", "true", "false", "1", "0", "max", "avg", "same_upper", "valid", "explicit", "auto",
    "nearest", "linear", "cubic", "linear_onnx", "floor", "ceil", "ceil_torch", "forward",
    "reverse", "bidirectional", "border", "value", "index", "none", "?", "...", "1..3", "numpy",
    "pdpd", "sum", "mul", "half_to_even", "tanh,tanh,tanh", "relu", "cf", "\u00e9", " ",
)  # fmt: skip
TYPES = (
    "f16", "f32", "f64", "bf16", "i8", "i16", "i32", "i64", "u1", "u2", "u3", "u4", "u6", "u8",
    "u16", "u32", "u64", "i4", "nf4", "boolean", "bool", "string", "f8e4m3", "f4e2m1", "dynamic",
    "FP32", "FP16", "I64", "I32", "U8", "BOOL", "BIN", "undefined",
)  # fmt: skip
LISTS = ("", "0", "1", "1,1", "2,2,2", "0,0", "-1,-1", "0,1,2,3", "1,", ",", "1 2", "1,1,1,1,1,1")
VERSIONS = (*(f"opset{i}" for i in range(1, 17)), "opset0", "opset99", "extension", "experimental")
_LINKS = ("edge", "port", "layer", "input", "output")
_PARTS = (
    "layers", "edges", "dim", "blobs", "data", "body", "then_body", "else_body", "port_map",
    "then_port_map", "else_port_map", "back_edges",
)  # fmt: skip
_CHANGED = (*("data",) * 8, "net", *_LINKS)  # elements whose attributes are changed
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?([eE][+-]?\d+)?|nan|inf)", re.IGNORECASE)


@dataclass
class Pool:
    """Parts of the layers of all networks: types by number of inputs, attributes by type."""

    types: dict[int, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))
    attributes: dict[str, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))
    layers: list[Element] = field(default_factory=list)

    @classmethod
    def of(cls, texts: Iterator[str]) -> Pool:
        pool = cls()
        for text in texts:
            for layer in ElementTree.fromstring(text).iter("layer"):
                type = layer.get("type", "")
                kind = type, layer.get("version", "")
                known = pool.types[len(layer.findall("input/port"))]
                known += [] if kind in known else [kind]
                pool.layers += [layer] if len(layer) < 4 else []
                for element in layer:
                    known = pool.attributes[type]
                    known += [item for item in element.attrib.items() if item not in known]
        return pool


def seeds() -> Iterator[tuple[str, bytes]]:
    """Yield networks of several versions, with loops, states, codes and weights as blobs.

    Nearly all others are of one layer, one for each use that tests of layers know.
    """
    from tests.openvino import rare_layers, test_loops
    from tests.openvino.layers import LEGACY, OPSETS, network
    from tests.openvino.test_conversion import largest, loop
    from tests.openvino.test_documents import modern, old, packed_matrices
    from tests.openvino.test_layers import MODULES
    from tests.openvino.test_names import named
    from tests.openvino.test_state import cache

    nets: list[Writer] = [modern(), *(old(version) for version in (2, 5, 7)), largest(), loop()]
    nets += [packed_matrices(16)[0], named("a,b", "c"), _windows(5), _windows(11)]
    nets += [test_loops.loop(4), test_loops.loop(3, joins=True), cache(), cache(starts=False)]
    nets += [test_loops.loop(None), _chosen()] * 2
    nets = nets * 6
    for version in (LEGACY, OPSETS):
        rows = [row for module in MODULES for row in module.ROWS if version in row.versions]
        nets += [network([row], version)[0] for row in rows]
    nets += [_use(use, 11) for use in rare_layers.USES] + [_use(use, 7) for use in rare_layers.OLD]
    found = [(net.text(), bytes(net.data)) for net in nets]
    yield from ((text, data) for text, data in found if len(text) < 8000 and len(data) < 1 << 16)


def _chosen() -> Writer:
    """One of two bodies, within a loop."""
    from tests.openvino import test_loops

    body = Writer()
    h, turn = body.input("h", (2,)), body.input("turn", (1,), "i64")
    equal = body.layer("Equal", [turn, turn], [(1,)])
    body.result(test_loops.chosen(body, equal, h, "Exp", "Negative"))
    return test_loops.three_turns(body, h, turn)


def _use(use: object, version: int) -> Writer:
    """A network of one layer that few have."""
    from tests.openvino.rare_layers import Known, Use

    assert isinstance(use, Use)
    net, ends = Writer(version), list[int]()
    for i, x in enumerate(use.operands):
        if isinstance(x, Known):
            ends.append(net.constant(x.array, type=x.type))
        else:
            ends.append(net.input(f"x{i}", x.shape, "i64" if x.dtype.kind == "i" else "f32"))
    shapes = [np.shape(x) for x in use.results]
    layer = net.layer(use.type, ends, shapes, opset=use.opset, attributes=use.attributes)
    return net.result(*((layer, len(ends) + i) for i in range(len(shapes))))


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


class Change:
    """One network while its parts are changed, blobs included."""

    def __init__(self, text: str, data: bytes, pool: Pool, chance: random.Random) -> None:
        self.root = ElementTree.fromstring(text)
        self.data, self.pool, self.chance = bytearray(data), pool, chance

    def again(self) -> None:
        """Make one change of any sort."""
        (change,) = self.chance.choices(list(CHANGES), list(CHANGES.values()))
        change(self)

    def _all(self, *tags: str) -> list[tuple[Element, Element]]:
        """Elements of these tags with their parents, of nested bodies too."""
        return [(parent, e) for parent in self.root.iter() for e in parent if e.tag in tags]

    def _one(self, *tags: str) -> tuple[Element, Element]:
        found = self._all(*tags)
        return self.chance.choice(found) if found else (Element("none"), Element("none"))

    def _value(self, element: Element, key: str) -> str:
        """Return another value of the same kind, or the value of another such element."""
        chance, old = self.chance, element.get(key, "")
        if chance.random() < 0.1:
            return chance.choice((*WORDS, *NUMBERS, *LISTS, *TYPES))
        others = [x for _, e in self._all(element.tag) if (x := e.get(key, old)) != old]
        if chance.random() < (0.6 if element.tag in _LINKS else 0.1) and others:
            return chance.choice(others)
        items = old.split(",")
        if all(_NUMBER.fullmatch(item.strip()) for item in items):
            if len(items) == 1 and chance.random() < 0.8:
                return chance.choice(NUMBERS)
            return ",".join(changed_list(items, lambda: chance.choice(NUMBERS), chance))
        return chance.choice(TYPES if old in TYPES else WORDS)

    def attribute(self) -> None:
        """Set an attribute, leave it out, or add one that others of the layer's type have."""
        chance = self.chance
        parent, element = self._one(chance.choice(_CHANGED))
        further = self.pool.attributes[
            (parent if element.tag == "data" else element).get("type", "")
        ]
        match chance.randrange(10):
            case 0 if element.attrib and element.tag != "net":
                del element.attrib[chance.choice(list(element.attrib))]
            case 1 | 2 if further:
                key, value = chance.choice(further)
                element.set(key, value)
                if chance.random() < 0.5:
                    element.set(key, self._value(element, key))
            case _ if element.attrib:
                key = chance.choice(list(element.attrib))
                element.set(key, self._value(element, key))

    def element(self) -> None:
        """Remove, repeat, rename or replace a part, or put its siblings in another order."""
        chance = self.chance
        tags = {e.tag for e in self.root.iter()}.intersection((*_LINKS, *_PARTS))
        parent, part = self._one(chance.choice(sorted(tags)))
        match chance.choice((*range(6), 6, 6, 6)) if len(parent) else 9:
            case 0 | 1:
                parent.remove(part)
            case 2:
                parent.append(deepcopy(part))
            case 3:
                parent[:] = chance.sample(list(parent), len(parent))
            case 4:
                part.tag = chance.choice(("input", "output", "edge", "x"))
            case 5:
                part[:] = deepcopy(list(self._one(part.tag)[1]))
            case 6 if part.tag == "layer":
                other = deepcopy(chance.choice(self.pool.layers))
                other.set("id", part.get("id", "0"))
                parent[list(parent).index(part)] = other

    def extents(self) -> None:
        """Change the shape of a port, or of a parameter with its port."""
        chance = self.chance
        values = ("0", "1", "2", "3", "7", "-1", "?", *NUMBERS, "1..3", "x", "")
        _, layer = self._one("layer")
        data = layer.find("data")
        whole = data is not None and "shape" in data.attrib and chance.random() < 0.7
        ports = layer.findall("output/port") if whole else [p for _, p in self._all("port")]
        if not ports:
            return
        port = chance.choice(ports)
        values = values[: 3 if whole else None]
        items = [dim.text or "" for dim in port.iter("dim")]
        items = changed_list(items, lambda: chance.choice(values), chance)
        if whole and data is not None:
            data.set("shape", ",".join(items))
            if layer.get("type") == "Const" and chance.random() < 0.8:
                size = int(np.prod([abs(int(n)) if n.isdigit() else 1 for n in items]))
                data.set("size", str(size * (8 if data.get("element_type") == "i64" else 4)))
        port[:] = []
        for item in items:
            ElementTree.SubElement(port, "dim").text = item

    def kind(self) -> None:
        """Make a layer one of another type, or of another set of operations."""
        _, layer = self._one("layer")
        if self.chance.random() < 0.3:
            layer.set("version", self.chance.choice(VERSIONS))
            return
        count = len(layer.findall("input/port"))
        known = self.pool.types.get(count) if self.chance.random() < 0.9 else None
        kinds = known or [kind for kinds in self.pool.types.values() for kind in kinds]
        type, version = self.chance.choice(kinds)
        layer.set("type", type)
        if version and "version" in layer.attrib:
            layer.set("version", version)
        attributes = self.pool.attributes[type]
        if attributes and self.chance.random() < 0.7:
            for old in layer.findall("data"):
                layer.remove(old)
            ElementTree.SubElement(layer, "data", dict(attributes))

    def blob(self) -> None:
        """Cut the weights, extend them, set items, or point a layer to others of them."""
        chance, places = self.chance, [e for e in self.root.iter() if "offset" in e.attrib]
        if not places:
            return self.again()
        place = chance.choice(places)
        start, size = (
            int(place.get(key, "")) if place.get(key, "").isdecimal() else 0
            for key in ("offset", "size")
        )
        match chance.randrange(8):
            case 0:
                del self.data[chance.randrange(len(self.data) + 1) :]
            case 1:
                self.data += bytes(chance.choice((1, 8, 64)))
            case 2:
                key = chance.choice(("offset", "size"))
                place.set(
                    key, chance.choice((*NUMBERS, str(start + 1), str(size - 1), str(size * 2)))
                )
            case 3:
                other = chance.choice(places)
                place.set("offset", other.get("offset", "0"))
            case 4 if "element_type" in place.attrib:
                place.set("element_type", chance.choice(TYPES))
            case _ if start + size <= len(self.data) and size:
                self._item(start, size, place.get("element_type", "f32"))

    def _item(self, start: int, size: int, type: str) -> None:
        """Set one item of a blob, or all of them."""
        chance = self.chance
        width = {"8": 1, "6": 2, "2": 4, "4": 8}.get(type[-1], 1)
        if type[:1] == "f" and width in (2, 4, 8):
            with np.errstate(over="ignore"):
                item = np.array(chance.choice(REALS)).astype(f"f{width}").tobytes()
        else:
            item = (chance.choice(INTEGERS) % 2 ** (8 * width)).to_bytes(width, "little")
        count = max(1, size // width)
        places = range(count) if chance.random() < 0.2 else [chance.randrange(count)]
        for at in places:
            self.data[start + at * width : start + (at + 1) * width] = item


CHANGES: dict[Callable[[Change], None], int] = {
    Change.attribute: 14,
    Change.element: 6,
    Change.extents: 5,
    Change.kind: 6,
    Change.blob: 4,
}


@cache
def networks() -> tuple[tuple[str, bytes], ...]:
    """Return networks that are right, with their weights."""
    return tuple(seeds())


@cache
def _pool() -> Pool:
    return Pool.of(iter(sorted({net for net, _ in networks()})))


def layers(chance: random.Random) -> bytes:
    """Return a network with one to three of its parts changed."""
    change = Change(*chance.choice(networks()), _pool(), chance)
    for _ in range(chance.choice((1, 2, 2, 3))):
        change.again()
    text = ElementTree.tostring(change.root, "unicode").encode("utf-8", "surrogatepass")
    return tar({"net.xml": text, "net.bin": bytes(change.data)})


def xml(chance: random.Random) -> bytes:
    """Return a network with other bytes, in its text or its weights."""
    net, data = chance.choice(networks())
    content = changed_bytes(net.encode(), chance) if chance.random() < 0.7 else net.encode()
    return tar({"net.xml": content, "net.bin": changed_bytes(data, chance)})


KIND = Kind(lambda: {"layers": (layers, 9), "xml": (xml, 1)}, attempt)
