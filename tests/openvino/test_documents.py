"""Networks of OpenVINO, old and new, with results that numpy gives; ways to load and use them."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from tests.openvino.documents import Writer
from tests.openvino.layers import LEGACY, shows

RNG = np.random.default_rng(0)


def real(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


W, B, X = real(3, 4), real(3), real(2, 4)


def modern(**options: Any) -> Writer:
    """relu(x W^T) + b, as version 11 writes it."""
    net = Writer(**options)
    x, w, b = net.input("x", (-1, 4)), net.constant(W, "w"), net.constant(B[None], "b")
    product = net.layer("MatMul", [x, w], [(-1, 3)], attributes={"transpose_b": "true"}, name="mm")
    relu = net.layer("ReLU", [product], [(-1, 3)], name="relu")
    return net.result(net.layer("Add", [relu, b], [(-1, 3)], name="sum"))


def old(version: int, tag: str = "data", type: str = "FullyConnected") -> Writer:
    """The same layer in an old version: weights are blobs, outputs what nothing reads."""
    net = Writer(version)
    x = net.input("x", (2, 4))
    blobs, given = {"weights": W, "biases": B}, {"out-size": 3}
    net.layer(type, [x], [(2, 3)], name="fc", attributes=given, blobs=blobs, tag=tag)
    return net


@shows("Parameter", "Const", "Result")
def test_a_modern_network(tmp_path: Path) -> None:
    model = modern().load(tmp_path)
    wanted = np.maximum(X @ W.T, 0) + B
    np.testing.assert_allclose(model(X), wanted, rtol=1e-5)
    np.testing.assert_allclose(model(x=X[:1]), wanted[:1], rtol=1e-5)  # its batch is open
    assert sorted(model.params) == ["b", "w"] and [x.name for x in model.outputs] == ["sum"]
    gradient = jax.grad(lambda p: model.apply(p, X).sum())(model.params)
    np.testing.assert_allclose(gradient["b"], np.full((1, 3), 2.0))
    inside = model.intermediates(X, names=["relu"])
    np.testing.assert_allclose(inside["relu"], np.maximum(X @ W.T, 0), rtol=1e-5)
    mapped = jax.vmap(model.apply, (None, 0))(model.params, X[:, None])
    np.testing.assert_allclose(mapped[:, 0], wanted, rtol=1e-5)


@shows("Input", versions=[LEGACY])
@pytest.mark.parametrize(
    ("version", "tag", "type"),
    [(7, "data", "FullyConnected"), (5, "data", "fullyconnected"), (2, "fc_data", "InnerProduct")],
)
def test_old_networks(version: int, tag: str, type: str, tmp_path: Path) -> None:
    model = old(version, tag, type).load(tmp_path)
    np.testing.assert_allclose(model(X), X @ W.T + B, rtol=1e-5)
    many = nnef_jax.load(tmp_path / "net.xml", input_shapes={"x": (5, 4)})
    np.testing.assert_allclose(
        many(np.repeat(X[:1], 5, 0)), np.repeat(X[:1] @ W.T + B, 5, 0), rtol=1e-5
    )


def test_means_and_scales_of_inputs(tmp_path: Path) -> None:
    net = Writer(5)
    net.layer("ReLU", [net.input("x", (1, 2, 2, 2))], [(1, 2, 2, 2)], name="y")
    channels = '<channel id="0"><mean value="1"/><scale value="2"/></channel>'
    channels += '<channel id="1"><mean value="-1"/><scale value="4"/></channel>'
    net.extra = f'<pre-process reference-layer-name="x">{channels}</pre-process>'
    x = real(1, 2, 2, 2)
    shift, scale = (np.float32(v).reshape(1, 2, 1, 1) for v in ([1, -1], [2, 4]))
    np.testing.assert_allclose(net.load(tmp_path)(x), np.maximum((x - shift) / scale, 0), rtol=1e-6)


def test_windows_of_version_2(tmp_path: Path) -> None:
    net = Writer(2)
    filter, bias = real(2, 1, 3, 2), real(2)
    given = {"kernel-x": 2, "kernel-y": 3, "stride-x": 2, "stride-y": 1, "pad-x": 1, "pad-y": 0,
             "output": 2, "group": 1, "dilation-x": 1, "dilation-y": 1}  # fmt: skip
    blobs = {"weights": filter, "biases": bias}
    x = net.input("x", (1, 1, 5, 6))
    net.layer("Convolution", [x], [(1, 2, 3, 4)], name="y", attributes=given, blobs=blobs)
    x = real(1, 1, 5, 6)
    padded = np.pad(x[0, 0], ((0, 0), (1, 1)))
    wanted = np.zeros((1, 2, 3, 4))
    for o, i, j in np.ndindex(2, 3, 4):
        wanted[0, o, i, j] = (padded[i : i + 3, 2 * j : 2 * j + 2] * filter[o, 0]).sum() + bias[o]
    np.testing.assert_allclose(net.load(tmp_path)(x), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("type", "items"), [("u1", [0] * 7 + [1, 1, 1, 0, 1, 0]), ("u2", [1, 0, 0, 0, 2, 0, 1])]
)
def test_bits(type: str, items: list[int], tmp_path: Path) -> None:
    """Those of u1 begin at the high bit of a byte, of other types at the low one, as there."""
    net, shape = Writer(), (len(items),)
    codes = net.packed(np.array([1, 0b11010010], np.uint8), shape, type)
    real = net.layer("Convert", [codes], [shape], attributes={"destination_type": "f32"})
    net.result(net.layer("Add", [net.input("x", shape), real], [shape]))
    np.testing.assert_array_equal(net.load(tmp_path)(np.zeros(shape, np.float32)), items)


def test_weights_of_16_bits_for_two_channels(tmp_path: Path) -> None:
    """They have as many bytes as one weight of 32 bits for all channels."""
    net, scale = Writer(6), np.array([2, -3], np.float16)
    given = {"across_spatial": 0, "channel_shared": 0, "eps": 0}
    x, blobs = net.input("x", (1, 2, 1, 3)), {"weights": scale}
    net.layer("Normalize", [x], [(1, 2, 1, 3)], attributes=given, blobs=blobs, precision="FP16")
    x = real(1, 2, 1, 3)
    wanted = x / np.sqrt((x**2).sum(1, keepdims=True)) * scale.reshape(1, 2, 1, 1)
    np.testing.assert_allclose(net.load(tmp_path)(x), wanted, rtol=1e-5)


@shows("TensorIterator")
@pytest.mark.parametrize("ends", [None, "from the end"])
def test_a_tensor_iterator(ends: Any, tmp_path: Path) -> None:
    """h = h + tanh(x_t), all values and the last."""
    body = Writer(11)
    x, h = body.input("xt", (1, 1, 3)), body.input("h", (1, 1, 3))
    total = body.layer("Add", [h, body.layer("Tanh", [x], [(1, 1, 3)])], [(1, 1, 3)])
    body.result(total)
    result = len(body.layers) - 1
    cut = 'start="-1" end="0" stride="-1" part_size="1"' if ends else ""
    inside = (
        f'<port_map><input axis="1" external_port_id="0" internal_layer_id="{x}" {cut}/>'
        f'<input external_port_id="1" internal_layer_id="{h}"/>'
        f'<output external_port_id="2" internal_layer_id="{result}"/>'
        f'<output axis="1" external_port_id="3" internal_layer_id="{result}" {cut}/></port_map>'
        f'<back_edges><edge from-layer="{result}" to-layer="{h}"/></back_edges>'
        f"<body><layers>{''.join(body.layers)}</layers><edges>{''.join(body.edges)}</edges></body>"
    )
    net = Writer(11)
    inputs = [net.input("x", (1, 4, 3)), net.input("h0", (1, 1, 3))]
    loop = net.layer("TensorIterator", inputs, [(1, 1, 3), (1, 4, 3)], inside=inside)
    model = net.result((loop, 2), (loop, 3)).load(tmp_path)
    x, h = real(1, 4, 3), real(1, 1, 3)
    steps = np.tanh(x[:, ::-1] if ends else x)
    wanted = h + np.cumsum(steps, axis=1)
    last, every = model(x, h)
    np.testing.assert_allclose(last, wanted[:, -1:], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(every, wanted[:, ::-1] if ends else wanted, rtol=1e-5, atol=1e-6)
    slope = jax.grad(lambda h: model.apply({}, x, h)[0].sum())(jnp.asarray(h))
    np.testing.assert_allclose(slope, np.ones_like(h))


@shows("If")
def test_one_of_two_bodies(tmp_path: Path) -> None:
    def body(type: str) -> tuple[str, int, int]:
        part = Writer(11)
        x = part.input("v", (3,))
        part.result(part.layer(type, [x], [(3,)]))
        result = len(part.layers) - 1
        return (
            f"<layers>{''.join(part.layers)}</layers><edges>{''.join(part.edges)}</edges>",
            x,
            result,
        )

    parts = {"then": body("Exp"), "else": body("Negative")}
    inside = "".join(
        f'<{name}_port_map><input external_port_id="1" internal_layer_id="{x}"/>'
        f'<output external_port_id="2" internal_layer_id="{y}"/></{name}_port_map>'
        f"<{name}_body>{text}</{name}_body>"
        for name, (text, x, y) in parts.items()
    )
    net = Writer(11)
    inputs = [net.input("c", (), "boolean"), net.input("x", (3,))]
    chosen = net.layer("If", inputs, [(3,)], inside=inside, opset="opset8")
    model, x = net.result(chosen).load(tmp_path), real(3)
    np.testing.assert_allclose(model(np.array(True), x), np.exp(x), rtol=1e-6)
    np.testing.assert_allclose(model(np.array(False), x), -x)
    both = jax.vmap(model.apply, (None, 0, None))({}, jnp.array([True, False]), x)
    np.testing.assert_allclose(both, [np.exp(x), -x], rtol=1e-6)


@shows("Memory", versions=[LEGACY])
@shows("ReadValue", "Assign")
@pytest.mark.parametrize("version", [7, 11])
def test_what_is_kept_from_call_to_call(version: int, tmp_path: Path) -> None:
    """y = x + what was kept; y is kept."""
    net = Writer(version)
    x = net.input("x", (1, 3))
    if version == 7:
        given = {"id": "m", "size": 2}
        kept = net.layer("Memory", [], [(1, 3)], attributes=given | {"index": 1}, name="in")
        total = net.layer("Eltwise", [x, kept], [(1, 3)], attributes={"operation": "sum"}, name="y")
        net.layer("Memory", [total], [], attributes=given | {"index": 0}, name="out")
        net.layer("ReLU", [total], [(1, 3)], name="z")
    else:
        start = net.constant(np.zeros((1, 3), np.float32))
        kept = net.layer(
            "ReadValue", [start], [(1, 3)], attributes={"variable_id": "m"}, opset="opset6"
        )
        total = net.layer("Add", [x, kept], [(1, 3)])
        net.layer("Assign", [total], [(1, 3)], attributes={"variable_id": "m"}, opset="opset6")
        net.result(net.layer("ReLU", [total], [(1, 3)]))
    model, xs = net.load(tmp_path), real(4, 1, 3)
    wanted = np.maximum(np.cumsum(xs, axis=0), 0)
    np.testing.assert_allclose(model.scan(xs)[0], wanted, rtol=1e-5, atol=1e-6)
    y, state = model.step(model.init_state(), xs[0])
    np.testing.assert_allclose(model.step(state, xs[1])[0], wanted[1], rtol=1e-5, atol=1e-6)
    assert list(state) == ["m"] and y.shape == (1, 3)


def test_weights_stay_as_they_are_stored(tmp_path: Path) -> None:
    """Codes of 8 bits with a scale: what decompresses them is in the graph."""
    net = Writer()
    codes = RNG.integers(-100, 100, (3, 4)).astype(np.int8)
    scale = np.full((3, 1), 0.01, np.float16)
    x, w, s = (
        net.input("x", (-1, 4)),
        net.constant(codes, "w", "i8"),
        net.constant(scale, "s", "f16"),
    )
    half = {"destination_type": "f16"}
    wide = net.layer("Convert", [w], [(3, 4)], attributes=half)
    product = net.layer("Multiply", [wide, s], [(3, 4)])
    full = net.layer("Convert", [product], [(3, 4)], attributes={"destination_type": "f32"})
    net.result(net.layer("MatMul", [x, full], [(-1, 3)], attributes={"transpose_b": "true"}))
    model = net.load(tmp_path)
    assert {k: str(v.dtype) for k, v in model.params.items()} == {"w": "int8", "s": "float16"}
    wanted = X @ (codes.astype(np.float32) * scale.astype(np.float32)).T
    np.testing.assert_allclose(model(X), wanted, rtol=1e-5, atol=1e-5)


def test_shapes_that_are_computed(tmp_path: Path) -> None:
    """Flatten by ShapeOf and Gather, as exporters write it, for each length by itself."""
    net = Writer()
    x = net.input("x", (-1, 2, -1))
    shape = net.layer("ShapeOf", [x], [(3,)], attributes={"output_type": "i64"}, opset="opset3")
    first = net.layer(
        "Gather",
        [shape, net.constant(np.array([0])), net.constant(np.array(0))],
        [(1,)],
        opset="opset8",
    )
    wanted = net.layer(
        "Concat", [first, net.constant(np.array([-1]))], [(2,)], attributes={"axis": 0}
    )
    net.result(net.layer("Reshape", [x, wanted], [(-1, -1)], attributes={"special_zero": "false"}))
    model = net.load(tmp_path)
    for batch, length in ((1, 3), (2, 5)):
        x = real(batch, 2, length)
        np.testing.assert_array_equal(model(x), x.reshape(batch, -1))


def test_networks_that_differ_in_a_constant_alone_share_nothing(tmp_path: Path) -> None:
    """Where extents are open the graph that is known before a call may be the same."""

    def net(end: int, folder: str) -> nnef_jax.Model:
        net = Writer()
        x = net.input("x", (-1, 3))
        shape = net.layer("ShapeOf", [x], [(2,)], attributes={"output_type": "i64"})
        same = net.layer("Reshape", [x, shape], [(-1, 3)], attributes={"special_zero": "false"})
        bounds = [net.constant(np.array([n])) for n in (0, end, 1, 0)]
        net.result(net.layer("Slice", [same, *bounds], [(-1, 3)], opset="opset8"))
        (tmp_path / folder).mkdir()
        return net.load(tmp_path / folder)

    run, x = jax.jit(lambda model, x: model(x)), real(5, 3)
    for end, folder in ((2, "two"), (3, "three")):
        np.testing.assert_array_equal(run(net(end, folder), x), x[:end])


def test_ways_to_give_a_network(tmp_path: Path) -> None:
    path, wanted = modern().write(tmp_path), np.maximum(X @ W.T, 0) + B
    archive = tmp_path / "net.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(path, "net.xml")
        tar.add(path.with_suffix(".bin"), "net.bin")
    for source in (path, str(path), tmp_path, archive, archive.read_bytes()):
        np.testing.assert_allclose(nnef_jax.load(source)(X), wanted, rtol=1e-5)
    modern().write(tmp_path, "other")
    with pytest.raises(
        nnef_jax.ArchiveError, match=r"several networks: net.xml, other.xml"
    ) as error:
        nnef_jax.load(tmp_path)
    assert error.value.hint == "load one by its path"


def test_the_collection(shared_cases: Path) -> None:
    """Every twelfth of the results of the runtimes themselves."""
    cases = json.loads((shared_cases / "openvino" / "manifest.json").read_text())
    for case in cases[::12]:
        model = nnef_jax.load(shared_cases / "openvino" / case["xml"])
        data = np.load(shared_cases / "openvino" / case["data"])
        assert [x.name for x in model.inputs] == [x["name"] for x in case["inputs"]]
        found = jax.tree.leaves(model(*(data[f"in/{x['name']}"] for x in case["inputs"])))
        if case["compare"] == "allclose":
            for output, array in zip(case["outputs"], found, strict=True):
                wanted = data[f"out/{output['name']}"]
                np.testing.assert_allclose(
                    np.asarray(array, wanted.dtype), wanted, rtol=case["rtol"], atol=case["atol"]
                )


def test_it_is_written_as_nnef(tmp_path: Path) -> None:
    model = modern().load(tmp_path)
    model.save(tmp_path / "saved.nnef.tgz")
    nnef_jax.convert(tmp_path / "net.xml", tmp_path / "converted.nnef.tgz")
    part = model.cut(outputs=["relu"])
    part.save(tmp_path / "part.nnef.tgz")
    for name, ours in (("saved", model), ("converted", model), ("part", part)):
        read = nnef_jax.load(tmp_path / f"{name}.nnef.tgz")
        assert read.inputs[0].name == "x"
        np.testing.assert_allclose(read(X), ours(X), rtol=1e-6)


def test_what_nnef_has_not_is_refused_by_name(tmp_path: Path) -> None:
    net = Writer()
    x, i = net.input("x", (3,)), net.input("i", (3,), "i32")
    half = net.layer("Convert", [x], [(3,)], attributes={"destination_type": "bf16"}, name="half")
    best = net.layer(
        "TopK",
        [x, net.constant(np.array(2))],
        [(2,), (2,)],
        opset="opset3",
        name="best",
        attributes={"axis": 0, "mode": "max", "sort": "value"},
    )
    divided = net.layer("Divide", [i, i], [(3,)], name="divided")
    path = net.result(half, (best, 2), divided).write(tmp_path)
    with pytest.raises(nnef_jax.UnsupportedError, match="items of bfloat16"):
        nnef_jax.convert(path)
    text = path.read_text().replace('destination_type="bf16"', 'destination_type="f32"')
    path.write_text(text)
    with pytest.raises(nnef_jax.UnsupportedError) as caught:
        nnef_jax.convert(path)
    assert [error.message for error in caught.value.errors] == [
        "layer 'best' (TopK): 'topk' is not an operation of the standard",
        "layer 'divided' (Divide): 'div' of items of int32 is not NNEF",
    ]


def packed_matrices(n: int) -> tuple[Writer, np.ndarray, np.ndarray]:
    """Two products with matrices of 4 bits in groups of 8, u4 with scales and nf4."""
    net, given = Writer(), {"destination_type": "f32"}
    codes, normal = RNG.integers(0, 16, (2, n, n)).astype(np.uint8)
    scale = RNG.uniform(0.5, 1.5, (n, n // 8, 1)).astype(np.float16)
    x, shape = net.input("x", (1, n)), (n, n // 8, 8)
    w = net.packed(codes[:, ::2] | codes[:, 1::2] << 4, shape, "u4", "w")
    wide = net.layer("Convert", [w], [shape], attributes=given)
    wide = net.layer("Subtract", [wide, net.constant(np.float32(8))], [shape])
    s = net.layer("Convert", [net.constant(scale, "s", "f16")], [scale.shape], attributes=given)
    wide = net.layer("Multiply", [wide, s], [shape])
    sizes = net.constant(np.array([n, n]))
    square = net.layer("Reshape", [wide, sizes], [(n, n)], attributes={"special_zero": "false"})
    x = net.layer("MatMul", [x, square], [(1, n)])
    v = net.packed(normal[:, ::2] | normal[:, 1::2] << 4, (n, n), "nf4", "v")
    net.result(net.layer("MatMul", [x, v], [(1, n)]))
    first = (codes - 8.0).reshape(shape) * np.float64(scale)
    return net, first.reshape(n, n), normal


def test_weights_of_4_bits_are_not_expanded(tmp_path: Path) -> None:
    """Neither in `params` nor in what is prepared; those of 8 bits may be."""
    n = 64
    net, first, codes = packed_matrices(n)
    model, x = net.load(tmp_path), real(1, n)
    assert {k: str(v.dtype) for k, v in model.params.items()} == {
        "w": "uint4", "s": "float16", "v": "uint4"
    }  # fmt: skip
    # Quantiles of the normal distribution, scaled to [-1, 1]: arXiv:2305.14314, appendix E.
    levels = np.array([-1, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0, 0.0796, 0.1609,
                       0.2461, 0.3379, 0.4407, 0.5626, 0.723, 1])  # fmt: skip
    wanted = x @ first @ levels[codes]
    np.testing.assert_allclose(model(x), wanted, rtol=1e-3, atol=1e-2)
    prepared = model.prepare(model.params)
    np.testing.assert_allclose(model.apply(prepared, x), wanted, rtol=1e-3, atol=1e-2)
    stored = sum(array.nbytes for array in model.params.values())
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(prepared)) < 2 * stored
