"""Networks in networks, JSON values and variables of an archive, as documents use them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnef_jax
from lowering.registry import Registry
from nnef_jax import NnefError
from tests.tract_files import tar
from tests.tract_text import graph

X = np.array([[1.0, -2.0, 3.0], [-4.0, 5.0, -6.0]], np.float32)
INNER = graph(
    "w = variable<scalar>(label = 'w', shape = [1, 3]); b = a * w + N; c = relu(b);",
    results="b, c",
    a="[N, 3] f32",
)
WEIGHT = np.array([[1, 2, 3]], np.float32)


def file(array: Any) -> bytes:
    buffer = io.BytesIO()
    nnef_jax.write_tensor(buffer, np.asarray(array))
    return buffer.getvalue()


def members(text: str, **arrays: Any) -> dict[str, bytes]:
    return {"graph.nnef": text.encode()} | {f"{n}.dat": file(a) for n, a in arrays.items()}


def load(inner: dict[str, bytes], outer: str, kind: str = "folder", **options: Any) -> Any:
    """The model of a document with another network 'part' in its archive."""
    match kind:
        case "tgz":
            parts = {"part.nnef.tgz": tar(inner, "w:gz")}
        case "tar":
            parts = {"part.nnef.tar": tar(inner)}
        case _:
            parts = {f"part/{name}": content for name, content in inner.items()}
    return nnef_jax.load(tar({"graph.nnef": outer.encode()} | parts), **options)


@pytest.mark.parametrize("kind", ["tgz", "tar", "folder"])
def test_networks_in_networks(kind: str) -> None:
    outer = graph(
        "(u, v) = tract_core_submodel([x], label = 'part'); b = u - v; y = b + w; z = u;",
        results="y, z",
    ).replace("b = u", "w = variable<scalar>(label = 'w', shape = [1, 3]); b = u")
    inner = members(INNER, w=WEIGHT)
    data = tar(
        {"graph.nnef": outer.encode(), "w.dat": file(10 * WEIGHT)}
        | (
            {f"part/{n}": c for n, c in inner.items()}
            if kind == "folder"
            else {f"part.nnef.{kind}": tar(inner, "w:gz" if kind == "tgz" else "w")}
        )
    )
    found = nnef_jax.load(data)
    assert sorted(found.params) == ["part/w", "w"]
    y, z = found(X)
    b = X * WEIGHT + 2
    np.testing.assert_allclose(z, b)
    np.testing.assert_allclose(y, b - np.maximum(b, 0) + 10 * WEIGHT)


def within_and_beside() -> bytes:
    """A network with another in it, and a JSON value."""
    outer = graph(
        "(u, v) = tract_core_submodel([x], label = '/a/part'); "
        "s = tract_resource_get('scales', 'one'); y = u * s;"
    )
    parts = {f"a/part/{name}": content for name, content in members(INNER, w=WEIGHT).items()}
    return tar({"graph.nnef": outer.encode(), "scales.json": b'{"one": 3.0}'} | parts)


@pytest.mark.parametrize("suffix", ["", ".tgz"])
def test_networks_in_networks_are_saved(suffix: str, tmp_path: Path) -> None:
    found = nnef_jax.load(within_and_beside())
    double = {label: 2 * x for label, x in found.params.items()}
    found.save(tmp_path / f"saved{suffix}", params=double)
    again = nnef_jax.load(tmp_path / f"saved{suffix}")
    np.testing.assert_allclose(again(X), 3 * (X * 2 * WEIGHT + 2))
    again.save(tmp_path / f"saved{suffix}", params=found.params, overwrite=True)
    np.testing.assert_allclose(nnef_jax.load(tmp_path / f"saved{suffix}")(X), 3 * (X * WEIGHT + 2))


@pytest.mark.parametrize("flat", [False, True])
def test_networks_in_networks_are_converted(flat: bool, tmp_path: Path) -> None:
    nnef_jax.convert(within_and_beside(), tmp_path / "net", flat=flat)
    np.testing.assert_allclose(nnef_jax.load(tmp_path / "net")(X), 3 * (X * WEIGHT + 2))
    assert (tmp_path / "net/scales.json").exists() is not flat


def test_a_folder_on_disk(tmp_path: Path) -> None:
    outer = graph("u, v = tract_core_submodel([x], 'part'); y = v;")
    for folder, content in (
        (tmp_path, {"graph.nnef": outer.encode()}),
        (tmp_path / "part", members(INNER, w=WEIGHT)),
    ):
        folder.mkdir(exist_ok=True)
        for name, data in content.items():
            (folder / name).write_bytes(data)
    np.testing.assert_allclose(nnef_jax.load(tmp_path)(X), np.maximum(X * WEIGHT + 2, 0))


def test_a_network_twice_and_in_a_fragment() -> None:
    outer = graph(
        "u, v = twice(x); (a, b) = tract_core_submodel(input = [u], label = 'part'); y = a;",
        "fragment twice( x: T ) -> ( u: T, v: T )\n"
        "{ (u, v) = tract_core_submodel([x], label = 'part'); }",
    )
    found = load(members(INNER, w=WEIGHT), outer)
    assert list(found.params) == ["part/w"]
    np.testing.assert_allclose(found(X), (X * WEIGHT + 2) * WEIGHT + 2)


def test_the_shape_of_a_network_within_follows_its_inputs() -> None:
    outer = graph("u, v = tract_core_submodel([x], 'part'); y = u;", x="[M, 3] f32")
    found = load(members(INNER, w=WEIGHT), outer)
    for rows in (1, 4):
        x = np.ones((rows, 3), np.float32)
        np.testing.assert_allclose(found(x), x * WEIGHT + rows)


@pytest.mark.parametrize("quantization", ["apply", "ignore"])
def test_graph_quant_of_a_network_within(quantization: Any) -> None:
    inner = members(graph("b = x * 1.0; y = b + 0.0;"))
    inner["graph.quant"] = (
        b'"b": zero_point_linear_quantize(zero_point = 0, scale = 4.0, bits = 8, signed = true);'
    )
    outer = graph("b = tract_core_submodel([x], 'part'); y = b * 1.0;")
    wanted = np.rint(X / 4) * 4 if quantization == "apply" else X
    np.testing.assert_array_equal(load(inner, outer, quantization=quantization)(X), wanted)
    # Entries of the outer graph.quant name its own tensors only.
    entry = inner.pop("graph.quant")
    data = {f"part/{name}": content for name, content in inner.items()}
    text = graph("z = tract_core_submodel([x], 'part'); b = x; y = z;")
    whole = tar(data | {"graph.nnef": text.encode(), "graph.quant": entry})
    np.testing.assert_array_equal(nnef_jax.load(whole)(X), X)


ENTRY = b'"b": zero_point_linear_quantize(zero_point = 3, scale = 4.0, bits = 8, signed = true);'


def test_codes_given_to_a_network_within_are_codes_there() -> None:
    inner = members(graph("y = tract_core_cast(x, to = 'i8');"))
    data = {f"part/{name}": content for name, content in inner.items()}
    outer = graph("b = x * 1.0; y = tract_core_submodel([b], 'part');")
    found = nnef_jax.load(tar(data | {"graph.nnef": outer.encode(), "graph.quant": ENTRY}))(X)
    np.testing.assert_array_equal(found, (np.rint(X / 4) + 3).astype("i1"))


def test_a_rule_of_ones_own_for_an_operation_on_codes_is_given_codes() -> None:
    rules = Registry()

    @rules.rule("tract_core_qmatmul", lambda A, **_: A)
    def first(A: Any, **_: Any) -> Any:
        return A

    text = graph("b = x * 1.0; y = tract_core_qmatmul(b, x);")
    archive = tar({"graph.nnef": text.encode(), "graph.quant": ENTRY})
    found = nnef_jax.load(archive, rules=rules)(X)
    np.testing.assert_array_equal(found, (np.rint(X / 4) + 3).astype("i1"))


@pytest.mark.parametrize(
    ("inner", "outer", "message"),
    [
        (INNER, "y, z = tract_core_submodel([x, x], 'part');", "takes 1 inputs, it is given 2"),
        (INNER, "y, z = tract_core_submodel([x], 'other');", "has no network 'other'"),
        (INNER, "y, z = tract_core_submodel([x], '../part');", "leads outside"),
        (INNER, "y = tract_core_submodel([x], 7);", "a string is due, this is 7"),
        (
            INNER.replace("[N, 3]", "[N, 4]"),
            "y, z = tract_core_submodel([x], 'part');",
            "input 'a' is declared as float32[2,4], it is given float32[2,3]",
        ),
        (
            INNER.replace("[N, 3]", "[2 * N + 1, 3]"),
            "y, z = tract_core_submodel([x], 'part');",
            "which no value of N gives",
        ),
        (INNER.replace("relu(b)", "nothing(b)"), "y, z = tract_core_submodel([x], 'part');",
         "there is no rule for operation 'nothing'"),
        (INNER.replace("relu(b)", "relu(b"), "y, z = tract_core_submodel([x], 'part');",
         "unexpected ';'"),
        (
            graph("y, z = tract_core_submodel([x], 'part');"),
            "y = tract_core_submodel([x], 'part');",
            "has no network 'part'",
        ),
    ],
)  # fmt: skip
def test_wrong_networks_within(inner: str, outer: str, message: str) -> None:
    with pytest.raises(NnefError) as caught:
        load(members(inner, w=WEIGHT), graph(outer, results="y"))
    assert message in str(caught.value) and caught.value.span is not None
    if "declared as" in message:
        assert "in fragment 'part/graph.nnef', called at the archive/graph.nnef:7:" in str(
            caught.value
        )


def test_a_network_that_holds_itself_at_every_depth_is_bounded() -> None:
    text = graph("y = tract_core_submodel([x], 'part'); y = tract_core_submodel([y], 'part');")
    data: dict[str, bytes] = {}
    for depth in range(15):
        data["part/" * depth + "graph.nnef"] = text.encode()
    data["part/" * 15 + "graph.nnef"] = graph("y = x;").encode()
    with pytest.raises(NnefError, match="steps"):
        nnef_jax.load(tar(data), limits=nnef_jax.Limits(steps=200_000))


# JSON


CONFIG = b'{"shape": [3, 2], "scale": 2.5, "on": true, "name": "body", "deep": [{"k": [1, 2]}]}'


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("y = x * tract_resource_get('config', 'scale');", X * 2.5),
        ("y = reshape(x, shape = tract_resource_get('config', 'shape'));", X.reshape(3, 2)),
        ("y = reshape(x, shape = [tract_resource_get('config', '$.shape[0]'), -1]);",
         X.reshape(3, 2)),
        ("y = select(tract_resource_get(label = 'config', key = 'on'), x, 0.0);", X),
        ("y = tract_core_gather(x, tract_resource_get('config', 'deep[0].k'), 1);", X[:, 1:]),
        ("y = tract_resource_get('config', 'scale');", np.float32(2.5)),
    ],
)  # fmt: skip
def test_json_values(body: str, wanted: Any) -> None:
    data = {"graph.nnef": graph(body).encode(), "config.json": CONFIG}
    np.testing.assert_array_equal(nnef_jax.load(tar(data))(X), wanted)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("y = x * §tract_resource_get('other', 'scale');", "no member 'other.json'"),
        ("y = x * §tract_resource_get('config', 'scales');", "did you mean 'scale'?"),
        ("y = x * §tract_resource_get('config', 1);", "a string is due, this is 1"),
        ("y = x §* tract_resource_get('config', 'name');", "a number is due, this is 'body'"),
    ],
)
def test_json_values_that_are_not_there(body: str, message: str) -> None:
    before, after = graph(body).split("§")
    with pytest.raises(NnefError) as caught:
        nnef_jax.load(tar({"graph.nnef": (before + after).encode(), "config.json": CONFIG}))
    assert message in str(caught.value)
    assert caught.value.span is not None and caught.value.span.offset == len(before)


# Variables


def test_missing_and_wrong_tensor_files() -> None:
    for body, arrays, message in (
        ("w = §variable<scalar>(label = 'a/b', shape = [2]); y = x;", {}, "no member 'a/b.dat'"),
        ("w = §variable<scalar>(label = 'w', shape = [2]); y = x;", {"w": [1.0]}, "has shape [1]"),
        ("w = §variable<scalar>(label = 3, shape = [2]); y = x;", {}, "a string is due"),
        ("w = §variable<scalar>(label = '../w', shape = [2]); y = x;", {}, "outside"),
    ):
        before, after = graph(body).split("§")
        with pytest.raises(NnefError) as caught:
            nnef_jax.load(tar(members(before + after, **arrays)))
        assert message in str(caught.value)
        assert caught.value.span is not None and caught.value.span.offset == len(before)


def test_a_variable_takes_its_shape_from_its_file() -> None:
    text = graph("w = variable(label = 'w'); y = x * w;")
    np.testing.assert_array_equal(nnef_jax.load(tar(members(text, w=WEIGHT)))(X), X * WEIGHT)


def test_a_label_twice_is_one_parameter() -> None:
    text = graph(
        "v = variable<scalar>(label = 'w', shape = [1, 3]);"
        "w = variable<scalar>(label = 'w', shape = [1, 3]); y = x * v + w;"
    )
    found = nnef_jax.load(tar(members(text, w=WEIGHT)))
    assert list(found.params) == ["w"]
    np.testing.assert_array_equal(found(X), X * WEIGHT + WEIGHT)
    np.testing.assert_array_equal(found.intermediates(X, names=["v", "w"])["v"], WEIGHT)


def test_progress() -> None:
    text = graph("a = variable(label = 'a'); b = variable(label = 'b'); y = x * a * b;")
    calls: list[tuple[int, int]] = []
    nnef_jax.load(tar(members(text, a=WEIGHT, b=WEIGHT)), progress=lambda *c: calls.append(c))
    assert calls == [(0, 2), (1, 2)]


def test_an_archive_is_read_before_it_is_closed(tmp_path: Path) -> None:
    """Later shapes need nothing of it."""
    path = tmp_path / "net.nnef.tar"
    text = graph("w = variable(label = 'w'); y = x * w + S;", x="[S, 3] f32")
    path.write_bytes(tar(members(text, w=WEIGHT)))
    found = nnef_jax.load(path)
    path.unlink()
    for rows in (1, 2):
        np.testing.assert_array_equal(found(X[:rows]), X[:rows] * WEIGHT + rows)
