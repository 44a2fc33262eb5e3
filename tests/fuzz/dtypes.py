"""Networks whose items have other types, loaded, run, and compared with references where there are.

Types are those of inputs, outputs, stored tensors, casts and attributes; a network keeps all else.
A mutant has the `dtype=` that it is loaded by. `onnx.reference` computes models of
ONNX that are valid; what a tensor file of NNEF holds is decoded here, item by item.
"""

from __future__ import annotations

import random
import re
import struct
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np
from onnx import ModelProto, TensorProto, checker, helper, load_from_string, numpy_helper
from onnx.reference import ReferenceEvaluator

import nnef_jax
from lowering.extents import UNKNOWN, volume
from tests.fuzz import Kind, Make, nnef, onnx, openvino
from tests.fuzz.networks import OPEN
from tests.helpers import tar
from tests.onnx.node_suite import without_padding

DTYPES = ("float32", "float32", "bfloat16", "float16")
_TOLERANCES = {10: 1e-2, 16: 5e-2}  # of float16 and bfloat16 in ONNX
# Operators that `onnx.reference` computes otherwise than the standard says: an L1 norm as a sum of
# signed numbers, codes of floats of few bits without their zero point, planes of whole numbers
# rounded after each axis.
_MISTAKEN = {"LpNormalization", "QuantizeLinear", "DequantizeLinear", "Resize"}
_LARGEST = 1 << 20  # items of a tensor of a network that is run
Mutant = tuple[str, bytes]  # the dtype to load a network in, and the network


def attempt(mutant: Mutant) -> str:
    """Load a network in a dtype and run it; return "model", or "right" if a reference says so.

    Raises AssertionError for a value that is not the reference's.
    """
    dtype, content = mutant
    model = nnef_jax.load(content, dtype=dtype)
    str(model.summary())
    inputs = [_array(x.shape, x.dtype) for x in model.inputs]
    values = (v for operation in model.graph.operations for v in operation.writes())
    if any(v.type.shape and volume(map(_known, v.type.shape)) > _LARGEST for v in values):
        return "large"
    results = [np.asarray(x) for x in jax.tree.leaves(model(*inputs))]
    given = dict(zip([x.name for x in model.inputs], inputs, strict=True))
    wanted, tolerance = _reference(content, given, dtype)
    for output, x, y in zip(model.outputs, results, wanted, strict=bool(wanted)):
        _compare(output.name, x, y, tolerance)
    return "right" if wanted else "model"


def _known(extent: int) -> int:
    return OPEN if extent is UNKNOWN else extent


def _array(shape: Any, dtype: Any) -> Any:
    chance = np.random.default_rng(0)
    shape, dtype = [OPEN if n is None else n for n in shape], np.dtype(dtype)
    if dtype.kind in "iub":
        return chance.integers(0, 2, shape).astype(dtype)
    return np.asarray(chance.normal(size=shape)).astype(dtype)


def _compare(name: str, x: Any, y: Any, tolerance: float) -> None:
    if y is None:
        return
    x = without_padding(x, y.shape)
    assert x.shape == y.shape, f"{name}: {x.shape}, due {y.shape}"
    if y.dtype.name.startswith("uint"):  # nothing says what a negative number becomes
        wide = x.astype(np.uint64), y.astype(np.uint64)
        x, y = (np.where(wide[1] > jnp.iinfo(y.dtype).max // 2, 0, each) for each in wide)
    if y.dtype == np.int64:  # computed in 32 bits
        x, y = (np.where(abs(y) > np.iinfo(np.int32).max, 0, each) for each in (x, y))
    if y.dtype.kind in "iubO":
        assert np.array_equal(x, y), f"{name}: {x}, due {y}"
        return
    wide = np.complex128 if y.dtype.kind == "c" else np.float64
    np.testing.assert_allclose(x.astype(wide), y.astype(wide), tolerance, tolerance, err_msg=name)


def _reference(content: bytes, inputs: dict[str, Any], dtype: str) -> tuple[list[Any], float]:
    """Return the values of a reference, if there is one, and the tolerance."""
    if content[:1] == b"\x08":
        return _by_onnx(content, inputs) if dtype == "float32" else ([], 0)
    stored = re.search(rb"# stored: (.*)\n", content)
    return [_decoded(stored[1], dtype)] if stored else [], 0


# ONNX


def element_types(chance: random.Random) -> Mutant:
    """A model of ONNX with one type instead of another, throughout or at one place."""
    model = ModelProto()
    model.CopyFrom(chance.choice(onnx.models()))
    places = list(_places(model))
    if places and chance.random() < 0.1:  # any number, or none that there is
        chance.choice(places)(chance.choice((0, 8, 27, 99)))
    elif places:
        types = [n for n in TensorProto.DataType.values() if n not in (0, TensorProto.STRING)]
        old = chance.choice([place(None) for place in places])
        new = chance.choice(types)
        same = [place for place in places if place(None) == old]
        for place in same if chance.random() < 0.7 else [chance.choice(same)]:
            place(new)
    return chance.choice(DTYPES), model.SerializeToString()


def _places(model: Any) -> Iterator[Callable[[int | None], int]]:
    """Yield functions that return the type at a place, or set it to another."""
    for graph in onnx.all_graphs(model.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.HasField("tensor_type"):
                yield _field(value.type.tensor_type, "elem_type")
        for tensor in graph.initializer:
            yield _converted(tensor)
    for node in onnx.all_nodes(model):
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype", "output_dtype") and attribute.type == 2:
                yield _field(attribute, "i")
            elif attribute.type == 4:
                yield _converted(attribute.t)


def _field(message: Any, name: str) -> Callable[[int | None], int]:
    def place(type: int | None) -> int:
        if type is not None:
            setattr(message, name, type)
        return getattr(message, name)

    return place


def _converted(tensor: Any) -> Callable[[int | None], int]:
    """Return the place of a stored tensor, whose items are cast where they can be."""

    def place(type: int | None) -> int:
        if type is not None:
            try:
                with np.errstate(all="ignore"), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    dtype = helper.tensor_dtype_to_np_dtype(type)
                    array = np.asarray(numpy_helper.to_array(tensor))
                    is_unsigned = dtype.name.startswith("uint") and array.dtype.kind in "if"
                    array = (np.abs(array) if is_unsigned else array).astype(dtype)
                    made = numpy_helper.from_array(array, tensor.name)
                tensor.CopyFrom(made)
            except (ValueError, TypeError, KeyError, AttributeError, NotImplementedError):
                pass
            tensor.data_type = type
        return tensor.data_type

    return place


def _by_onnx(content: bytes, inputs: dict[str, Any]) -> tuple[list[Any], float]:
    """Return the results of `onnx.reference`, none for a model that it or the checker refuses."""
    model = load_from_string(content)
    if not _MISTAKEN.isdisjoint(node.op_type for node in onnx.all_nodes(model)):
        return [], 0
    ports = {x.name: x.type.tensor_type.elem_type for x in model.graph.input}
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            checker.check_model(model, full_check=True)
            given = {
                name: x.astype(helper.tensor_dtype_to_np_dtype(ports[name]))
                for name, x in inputs.items()
            }
            found: Any = ReferenceEvaluator(model).run(None, given)
            ends = [x.type.tensor_type.elem_type for x in model.graph.output]
            types = list(map(helper.tensor_dtype_to_np_dtype, ends))
    except Exception:  # whatever it does with types that its authors did not try
        return [], 0
    arrays = [x if isinstance(x, np.ndarray) else np.empty(0) for x in found]
    if [x.dtype for x in arrays] != types:
        return [], 0
    known = {place(None) for place in _places(model)}
    return arrays, max((_TOLERANCES.get(type, 1e-3) for type in known), default=1e-3)


# OpenVINO

_PRECISION = re.compile(r'(element_type|precision|destination_type|output_type)="(\w+)"')


def precisions(chance: random.Random) -> Mutant:
    """A network of OpenVINO with one precision instead of another, throughout or at one place."""
    net, data = chance.choice(openvino.networks())
    found = [*_PRECISION.finditer(net)]
    if found:
        old, new = chance.choice(found)[2], chance.choice(openvino.TYPES)
        same = [x for x in found if x[2].lower() == old.lower()]
        chosen = same if chance.random() < 0.7 else [chance.choice(same)]
        if len(chosen) > 1:
            net, data = _with_constants(net, data, old, new)
            chosen = [x for x in _PRECISION.finditer(net) if x[2].lower() == old.lower()]
        for place in reversed(chosen):
            net = net[: place.start(2)] + new + net[place.end(2) :]
    return chance.choice(DTYPES), tar({"net.xml": net, "net.bin": data})


def _with_constants(net: str, data: bytes, old: str, new: str) -> tuple[str, bytes]:
    """Return a network with items of a type behind its data, cast to another."""
    names = {"f32": "f4", "f16": "f2", "f64": "f8", "i64": "i8", "i32": "i4", "i16": "i2"}
    names |= {"i8": "i1", "u8": "u1", "u16": "u2", "u32": "u4", "u64": "u8", "boolean": "?"}
    if old not in names or new not in names:
        return net, data
    root = ElementTree.fromstring(net)
    for element in root.iter("data"):
        if element.get("element_type") == old and element.get("offset", "").isdigit():
            start, size = int(element.get("offset", 0)), int(element.get("size", 0))
            with np.errstate(all="ignore"):
                items = np.frombuffer(data[start : start + size], names[old]).astype(names[new])
            element.set("offset", str(len(data)))
            element.set("size", str(items.nbytes))
            data += items.tobytes()
    return ElementTree.tostring(root, "unicode"), data


# NNEF and tract

_FIELDS = struct.Struct("<2sBBII8IIHHI72x")
_KINDS = ("scalar", "integer", "logical")
_DECLARED = re.compile(r"(?<=<)(?:scalar|integer|logical)(?=>)")
_DATUM = re.compile(r"(?<=['\"])(?:[iuf](?:8|16|32|64)|bool|tdim|bf16|complex\w+)(?=['\"])")
_DATUMS = ("f16", "f32", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool")
_DATUMS += ("tdim", "string", "complexf32", "bf16", "f128")


def item_types(chance: random.Random) -> Mutant:
    """A network that copies a stored tensor, whose header has any type and width of items."""
    code, bits = chance.choice((0, 0, 1, 2, 3, 4, 4, 5, 6)), chance.choice((1, 3, 8, 16, 32, 64, 7))
    if code == 0 and chance.random() < 0.8:
        bits = chance.choice((16, 32, 64))
    count, vendor = 6, chance.choice((0,) * 9 + (1,))
    signed = chance.choice((0, 0, 1)) if code != 4 else 1
    size = (count * bits + 7) // 8 + chance.choice((0,) * 9 + (1, -1))
    items = bytes(chance.choice((0, 1, 2, 60, 63, 127, 128, 255)) for _ in range(size))
    header = _FIELDS.pack(b"N\xef", 1, 0, size, 2, 2, 3, *(0,) * 6, bits, code, vendor, signed)
    kind = chance.choice(_KINDS)
    told = f"{code} {bits} {vendor} {signed} {items.hex()} {kind}"
    text = (
        f"version 1.0;\n# stored: {told}\ngraph net( x ) -> ( y )\n{{\n"
        "x = external<scalar>(shape = [1]);\n"
        f"v = variable<{kind}>(shape = [2, 3], label = 'v');\ny = copy(v);\n}}\n"
    )
    return chance.choice(DTYPES), tar({"graph.nnef": text, "v.dat": header + items})


def _decoded(told: bytes, dtype: str) -> Any:
    """Return the items of a header and its data, None where they are codes or too large."""
    code, bits, vendor, signed = map(int, told.split()[:4])
    data = bytes.fromhex(told.split()[4].decode())
    if code in (2, 3) or vendor:
        return None
    if code == 0:
        items = np.frombuffer(data, f"<f{bits // 8}").tolist()
        return _in(items, dtype)
    if bits in (8, 16, 32, 64):
        items = [
            int.from_bytes(data[i : i + bits // 8], "little")
            for i in range(0, len(data), bits // 8)
        ]
    else:
        stream = "".join(f"{byte:08b}" for byte in data)
        items = [int(stream[i * bits : i * bits + bits], 2) for i in range(6)]
    if code == 5:
        return np.array(items, bool).reshape(2, 3)
    if code == 4 or signed:
        items = [n - (1 << bits) * (n >> bits - 1) for n in items]
    if told.endswith(b"scalar"):
        return _in(items, dtype)
    return np.array(items, object).reshape(2, 3)


def _in(items: list[Any], dtype: str) -> Any:
    """Return numbers in a real dtype, each rounded once; finite ones stay finite."""
    array = np.array(items).reshape(2, 3)
    with np.errstate(all="ignore"):
        made = array.astype(jnp.dtype(dtype)).astype(np.float64)
    ends = float(jnp.finfo(dtype).max)
    return np.where(np.isinf(array), made, np.clip(made, -ends, ends))


def declared(chance: random.Random) -> Mutant:
    """A document with other types of variables and inputs, or names of them in tract's dialect."""
    _, members = chance.choice(nnef.documents())
    text = members["graph.nnef"].decode()
    for pattern, words in ((_DECLARED, _KINDS), (_DATUM, _DATUMS)):
        places = [*pattern.finditer(text)]
        for place in reversed(chance.sample(places, min(len(places), chance.randint(1, 3)))):
            text = text[: place.start()] + chance.choice(words) + text[place.end() :]
    return chance.choice(DTYPES), tar({**members, "graph.nnef": text.encode()})


SORTS: dict[str, tuple[Make, int]] = {
    "element_types": (element_types, 5),
    "precisions": (precisions, 3),
    "item_types": (item_types, 1),
    "declared": (declared, 2),
}
KIND = Kind(lambda: SORTS, attempt)
