"""What is wrong with a network of OpenVINO is one located error, in bounded time and memory."""

from __future__ import annotations

import random
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from nnef_jax import Limits
from tests.fuzz import kind
from tests.fuzz.draw import changed_bytes
from tests.openvino.documents import Writer, write
from tests.openvino.test_documents import X, modern, old
from tests.openvino.test_files import tar, zipped

GOOD = modern().text()
DATA = bytes(modern().data)


def load(folder: Path, text: str | bytes, data: bytes | None = DATA) -> nnef_jax.Model:
    return nnef_jax.load(write(folder, text, data))


LAUGHS = """<!DOCTYPE net [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]><net>&b;</net>"""
WRONG: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "no XML: no element found"),
    "another root": ("<model></model>", "it is <model>"),
    "onnx": (b"\x08\x07\x12\x07pytorch", "no XML"),
    "cut off": (GOOD[:300], "no XML"),
    "entities": (LAUGHS, "document type"),
    "encoding": (b'<?xml version="1.0" encoding="klingon"?><net/>', "no XML"),
    "no layers": ('<net name="n" version="11"><layers/></net>', "no layers"),
    "version 1": (GOOD.replace('version="11"', 'version="1"'), "version 1, versions 2 to 11"),
    "version x": (GOOD.replace('version="11"', 'version="x"'), "'version' must be a whole number"),
    "huge extent": (GOOD.replace("<dim>4</dim>", f"<dim>{10**30}</dim>"), "extent '1000"),
    "negative extent": (GOOD.replace("<dim>4</dim>", "<dim>-7</dim>"), "extent '-7'"),
    "extent of a word": (GOOD.replace('shape="?,4"', 'shape="wide,4"'), "extent 'wide'"),
    "endless extent": (GOOD.replace('shape="?,4"', f'shape="?,{"9" * 5000}"'), "extent '9999"),
    "many axes": (GOOD.replace('shape="?,4"', f'shape="{"1," * 99}4"'), "it has 100 axes"),
    "no type": (GOOD.replace('type="ReLU"', ""), "has no type"),
    "unknown type": (
        GOOD.replace('type="ReLU"', 'type="Quux"').replace('type="Add"', 'type="Quuux"'),
        r"(?s)'relu': 'Quux' of opset1 is not supported.*'sum': 'Quuux'",
    ),
    "unknown element type": (GOOD.replace('"f32"', '"f33"'), "no element type 'f33'"),
    "two of one id": (GOOD.replace('id="1" name="w"', 'id="0" name="w"'), "the same id"),
    "edge to nowhere": (GOOD.replace('to-layer="3"', 'to-layer="77"'), "no layer with the id 77"),
    "result of nothing": (
        re.sub('<edge [^>]*to-layer="6"[^>]*>', "", GOOD),
        "'result_6' .Result. has no input",
    ),
    "no body": (GOOD.replace('type="ReLU"', 'type="If"'), "it has no <then_body>"),
    "edge from no port": (GOOD.replace('from-port="2"', 'from-port="9"'), "no port 9"),
    "cycle": (
        GOOD.replace(
            '<edge from-layer="1" from-port="0" to-layer="3" to-port="1"/>',
            '<edge from-layer="5" from-port="2" to-layer="3" to-port="1"/>',
        ),
        "depends on itself",
    ),
    "beyond the .bin": (
        GOOD.replace('offset="48"', 'offset="4800"'),
        r"bytes 4800 to 4812 of .*which has only 60",
    ),
    "another size": (
        GOOD.replace('size="12"', 'size="16"'),
        r"it has 16 bytes, \[1, 3\] items of f32 take 12",
    ),
    "negative offset": (GOOD.replace('offset="48"', 'offset="-48"'), "-48"),
    "offset before the .bin": (
        GOOD.replace('offset="48" size="12"', 'offset="-48"'),
        "the bytes -48 to -36",
    ),
    "attribute": (
        GOOD.replace('transpose_b="true"', 'transpose_b="maybe"'),
        "true or false is due",
    ),
    "shapes": (
        GOOD.replace('transpose_b="true"', 'transpose_b="false"'),
        "'mm' .MatMul.: the columns",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_it_is_located(name: str, tmp_path: Path) -> None:
    text, message = WRONG[name]
    with pytest.raises(nnef_jax.NnefError, match=message) as caught:
        load(tmp_path, text)
    assert re.search(r"net\.xml:\d+:\d+: ", str(caught.value))


def test_weights_that_there_are_not(tmp_path: Path) -> None:
    with pytest.raises(nnef_jax.NnefError, match=r"net\.bin', which does not exist"):
        load(tmp_path, GOOD, None)
    with pytest.raises(nnef_jax.NnefError, match="which has only 10"):
        load(tmp_path, GOOD, DATA[:10])


def test_nesting_without_end(tmp_path: Path) -> None:
    deep = "<layers><layer id='0' name='x' type='TensorIterator'><body>" * 1000
    with pytest.raises(nnef_jax.LimitError, match="nested more than 200 deep"):
        load(tmp_path, f"<net version='7'>{deep}")


def test_nesting_that_the_limits_allow(tmp_path: Path) -> None:
    """Python's stack ends before a thousand bodies do."""
    layer = "<layers><layer id='0' name='x' type='TensorIterator'><body>"
    text = layer * 1000 + "</body></layer></layers>" * 1000
    (tmp_path / "net.xml").write_text(f"<net version='7'>{text}</net>")
    with pytest.raises(nnef_jax.NnefError, match=r"nested too deeply|no layers"):
        nnef_jax.load(tmp_path, limits=nnef_jax.Limits.unbounded())


def test_a_bomb_in_an_archive(tmp_path: Path) -> None:
    """A few kilobytes that become gigabytes, of text and of weights, as tar and as zip."""
    big, text = Limits(expanded_bytes=1_000_000), GOOD.encode()
    for members in ({"net.xml": bytes(10**7)}, {"net.xml": text, "net.bin": bytes(10**7)}):
        for pack in (tar, zipped):
            with pytest.raises(nnef_jax.LimitError, match="more than 1000000 bytes of memory"):
                nnef_jax.load(pack(members), limits=big)


def test_encodings(tmp_path: Path) -> None:
    wanted = np.asarray(load(tmp_path, GOOD)(X))
    text = GOOD.replace('"1.0"', '"1.0" encoding="UTF-16"')
    np.testing.assert_array_equal(load(tmp_path, text.encode("utf-16"))(X), wanted)
    np.testing.assert_array_equal(load(tmp_path, b"\xef\xbb\xbf" + GOOD.encode())(X), wanted)
    with pytest.raises(nnef_jax.NnefError, match="no XML"):
        load(tmp_path, GOOD.encode("utf-16-le")[:-7])


def test_a_port_without_extents_is_a_single_number(tmp_path: Path) -> None:
    text = re.sub(r"<dim>[^<]*</dim>", "", GOOD)
    np.testing.assert_array_equal(load(tmp_path, text)(X), load(tmp_path, GOOD)(X))
    with pytest.raises(nnef_jax.NnefError, match=r"net\.xml:1:"):
        load(tmp_path, re.sub(r"<dim>[^<]*</dim>", "", old(7).text()), bytes(old(7).data))


def test_layers_without_end(tmp_path: Path) -> None:
    many = "".join(f'<layer id="{i}" name="x" type="ReLU"/>' for i in range(5_000))
    (tmp_path / "net.xml").write_text(f'<net version="7"><layers>{many}</layers></net>')
    with pytest.raises(nnef_jax.LimitError, match="more than 100000 steps"):
        nnef_jax.load(tmp_path, limits=nnef_jax.Limits(steps=100_000))


def _computed(type: str, *operands: np.ndarray, **attributes: object) -> Writer:
    """A layer of a few numbers that asks for a great many."""
    net = Writer()
    inputs = [net.constant(x) for x in operands]
    return net.result(net.layer(type, inputs, [(1,)], attributes=attributes, name="many"))


def _kept() -> Writer:
    """A variable of more zeros than there is memory for."""
    given = {"variable_id": "v", "variable_shape": "1,40000,40000", "variable_type": "f32"}
    net = Writer()
    shape = (1, 40000, 40000)
    return net.result(net.layer("ReadValue", [], [shape], attributes=given, opset="opset6"))


def _grown() -> Writer:
    """Sums and gathers of known numbers, each of which the square of the numbers would be."""
    net = Writer()
    wide = net.constant(np.array([65536]))
    row = net.layer("Broadcast", [net.constant(np.array([1])), wide], [(65536,)])
    column = net.layer("Unsqueeze", [row, net.constant(np.array([1]))], [(65536, 1)])
    table = net.layer("Unsqueeze", [row, net.constant(np.array([0]))], [(1, 65536)])
    total = net.layer("Add", [column, table], [(65536, 65536)])
    rows = net.layer("Gather", [table, row, net.constant(np.array([0]))], [(65536, 65536)])
    for x in (total, rows):
        net.layer("Result", [x], outputs=[])
    return net


_SIDES = np.array([10**5, 10**5])
_BOUNDLESS: dict[str, Writer] = {
    "prior boxes": _computed("PriorBox", _SIDES, _SIDES, min_size=9, offset=0.5),
    "dense boxes": _computed(
        "PriorBox", _SIDES // 10**5, _SIDES, fixed_size=9, density=10**7, offset=0.5
    ),
    "clustered": _computed("PriorBoxClustered", _SIDES, _SIDES, width=9, height=9, offset=0.5),
}


@pytest.mark.parametrize("name", _BOUNDLESS)
def test_numbers_that_are_computed_are_counted(name: str, tmp_path: Path) -> None:
    with pytest.raises(nnef_jax.LimitError, match=r"layer 'many' takes more than 10000000 steps"):
        _BOUNDLESS[name].load(tmp_path)


def test_zeros_that_are_kept_are_counted(tmp_path: Path) -> None:
    with pytest.raises(nnef_jax.LimitError, match="more than 2000000000 bytes of memory"):
        _kept().load(tmp_path)


def test_what_would_grow_is_not_folded(tmp_path: Path) -> None:
    shapes = {x.type.shape for x in _grown().load(tmp_path).graph.outputs}
    assert shapes == {(65536, 65536)}


def test_names_and_edges_without_end(tmp_path: Path) -> None:
    """What is looked for by name, by id and by port takes time that grows as their number does."""
    many = "".join(
        f'<layer id="{i}" name="x" type="Input"><output><port id="0"/></output></layer>'
        for i in range(8_000)
    )
    (tmp_path / "net.xml").write_text(f'<net version="7"><layers>{many}</layers></net>')
    model = nnef_jax.load(tmp_path)
    assert [x.name for x in model.inputs[:3]] == ["x", "x_1", "x_2"] and len(model.outputs) == 8_000
    ports = "".join(f'<port id="{i}"/>' for i in range(8_000))
    edges = "".join(
        f'<edge from-layer="0" from-port="{i}" to-layer="1" to-port="{i}"/>' for i in range(8_000)
    )
    layers = f'<layer id="0" type="a"><output>{ports}</output></layer>'
    layers += f'<layer id="1" type="b"><input>{ports}</input></layer>'
    with pytest.raises(nnef_jax.LimitError, match="steps"):
        load(tmp_path, f'<net version="7"><layers>{layers}</layers><edges>{edges}</edges></net>')


def test_a_web_page(tmp_path: Path) -> None:
    (tmp_path / "net.xml").write_text("<html><body>404</body></html>")
    with pytest.raises(nnef_jax.ArchiveError, match=r"net\.xml is a web page"):
        nnef_jax.load(tmp_path / "net.xml")


def test_a_result_of_strings(tmp_path: Path) -> None:
    net = _computed("NonZero", np.array([0, 1, 2]), output_type="string")
    with pytest.raises(nnef_jax.SemanticError, match=r"net\.xml:.* no tensors of type 'string'"):
        net.load(tmp_path)


def test_integers_of_few_bits_that_jax_computes_nothing_in(tmp_path: Path) -> None:
    net = Writer()
    net.result(net.layer("Abs", [net.input("x", (2, 4), "i4")], [(2, 4)], name="y"))
    with pytest.raises(nnef_jax.SemanticError, match="8 bits or more, it holds int4"):
        jax.eval_shape(net.load(tmp_path).apply, {}, jax.ShapeDtypeStruct((2, 4), jnp.int4))


def test_a_shape_in_integers_of_few_bits(tmp_path: Path) -> None:
    net = Writer()
    given = {"output_type": "u4"}
    shape = net.layer("ShapeOf", [net.input("x", (2, 9))], [(2,)], attributes=given, opset="opset3")
    found = net.result(shape).load(tmp_path)(np.zeros((2, 9), np.float32))
    assert found.dtype == jnp.uint4 and found.tolist() == [2, 9]


def test_a_constant_as_floats_of_8_bits(tmp_path: Path) -> None:
    net = Writer()
    x, scale = net.constant(np.float32(3.3)), net.input("scale", (2,))
    given = {"destination_type": "f8e4m3"}
    y = net.layer("FakeConvert", [x, scale], [(2,)], attributes=given, opset="opset13")
    found = net.result(y).load(tmp_path)(np.float32([2, 1]))
    np.testing.assert_array_equal(found, [3.25, 3.25])  # the nearest floats to 6.6 and 3.3


def test_shapes_that_nothing_has(tmp_path: Path) -> None:
    with pytest.raises(nnef_jax.InputError, match=r"of 'x' has the negative extent -4"):
        modern().load(tmp_path, input_shapes={"x": (-4, 4)})


def test_pre_process_that_is_wrong(tmp_path: Path) -> None:
    for shape, channel, message in (
        ((1, 1, 2, 2), '<channel id="x"/>', r"'id' must be a whole number"),
        (
            (1, 1, 2, 2),
            '<channel><mean offset="-4" size="16"/></channel>',
            r"'offset' must be a whole number",
        ),
        ((4,), "<channel/>", r"it has 1 channels, the input is \[4\]"),
    ):
        net = Writer(5)
        net.layer("ReLU", [net.input("x", shape)], [shape])
        net.extra = f'<pre-process reference-layer-name="x">{channel}</pre-process>'
        with pytest.raises(nnef_jax.NnefError, match=rf"net\.xml:1:\d+: pre-process: {message}"):
            net.load(tmp_path)


# Of numbers that are beyond a dtype: they become infinite.
@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
def test_no_change_of_a_part_breaks_the_reader() -> None:
    """Attributes, edges, types, bodies and blobs are changed: a network results, or NnefError."""
    ends = Counter[str]()
    for end, count in kind("openvino").ends(range(250)).items():
        ends[end.split("/")[1]] += count
    assert min(ends["model"], ends["SemanticError"], ends["NnefSyntaxError"]) > 10


@pytest.mark.parametrize("make", [modern, lambda: old(7)])
def test_no_change_of_a_file_breaks_the_reader(make: object, tmp_path: Path) -> None:
    """Letters and bytes are changed at random: a network results, or NnefError."""
    chance = random.Random(0)
    net: Writer = make()  # type: ignore[operator]
    for _ in range(150):
        with suppress(nnef_jax.NnefError):
            text = changed_bytes(net.text().encode(), chance)
            load(tmp_path, text, changed_bytes(bytes(net.data), chance))
