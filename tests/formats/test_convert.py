"""`convert`: networks of both dialects as networks of 1.0 final, with their data."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnef_jax import DataError, UnsupportedError, load, read_tensor
from nnef_jax.formats.syntax.standard import standard
from nnef_jax.reading.read import network_of_text
from nnef_jax.saving.conversion import convert
from nnef_jax.storage.tensorfile import encode_tensor
from tests.cli_support import fails, ok
from tests.helpers import COMPOSITIONAL, archive, model_of
from tests.printed import ALIASES, assert_same_results, khronos, print_graph, results_of


def test_a_final_document_keeps_its_text(tmp_path: Path) -> None:
    text = f"# a comment\n{ALIASES}"
    data = model_archive(text, {"s/w": np.array([2.5], np.float16)})
    assert convert(data, tmp_path / "out") == text
    assert (tmp_path / "out" / "graph.nnef").read_text() == text
    assert read_tensor(tmp_path / "out" / "s" / "w.dat").dtype == np.float16
    with pytest.raises(FileExistsError):
        convert(data, tmp_path / "out")
    convert(data, tmp_path / "out", flat=True, overwrite=True)
    assert "fragment" not in (tmp_path / "out" / "graph.nnef").read_text()
    assert_same_results(load(data), load(tmp_path / "out"))


def model_archive(text: str, tensors: dict[str, Any], quant: str | None = None) -> bytes:
    """An archive of a text and tensors by label, as arrays or as the bytes of their files."""
    members: dict[str, Any] = {"graph": text} | ({"quant": quant} if quant else {})
    for label, tensor in tensors.items():
        if not isinstance(tensor, bytes):
            header, items = encode_tensor(tensor)
            tensor = header + bytes(items)
        members[label] = tensor
    return archive(**members)


def test_without_a_path_no_data_are_read() -> None:
    text = convert(archive(graph=ALIASES), flat=True)
    khronos(text)
    assert print_graph(network_of_text(ALIASES).graph) == text


def test_a_flat_document_of_primitives() -> None:
    text = f"""{COMPOSITIONAL}
        fragment block( x: tensor<scalar> ) -> ( y: tensor<scalar> )
        {{ y = batch_normalization(relu(x), 0.5, 1.0, 0.0, 1.0, epsilon = 1e-3) ^ 2.0; }}
        graph G( x ) -> ( y, p ) {{ x = external(shape = [1,2,4,4]); y = softmax(block(x));
        p = local_response_normalization(x, size = [1,3,1,1]); }}"""
    document = archive(graph=text)
    primitive = convert(document, expand="all")
    khronos(primitive)
    kinds = {operation.kind for operation in network_of_text(primitive).graph.operations}
    assert {"box", "exp", "pow", "select"} <= kinds
    assert all(standard()[kind].body is None for kind in kinds)
    assert_same_results(load(document, expand="all"), model_of(primitive, expand="all"))
    compound = network_of_text(convert(document, flat=True)).graph.operations
    assert {"relu", "batch_normalization", "softmax"} <= {o.kind for o in compound}
    assert not any(operation.kind == "block" for operation in compound)


def provisional_tensor(array: Any, code: int, bits: int, algorithm: str = "") -> bytes:
    """A tensor file with the header of the provisional specification (its section 5.2)."""
    text = algorithm.encode()
    extents = struct.pack(f"<{array.ndim}I", *array.shape)
    size = 16 + len(extents) + len(text)
    head = b"\x4e\xef\x01\x00" + struct.pack("<II", size, array.ndim) + extents
    return head + struct.pack("<BBH", code, bits, len(text)) + text + array.tobytes()


OLD = """version 1.0

fragment dense( input: tensor, channels: extent, scope: string, flip: logical = true )
-> ( output: tensor )
{
    filter = variable(label = scope + '/filter', shape = [channels, shape_of(input)[1]])
    bias = variable(label = scope + '/bias', shape = [1, channels])
    output = matmul(input, filter, trB = flip) + bias
}

fragment repeated( x: tensor, times: extent[] ) -> ( y: tensor )
{
    parts = [x * scalar(t) for t in times if t > 0]
    y = add_n(parts) if length_of(parts) > 1 else x
}

graph G( x ) -> ( y, t )
{
    x = external(shape = [2,3])
    h = dense(x, channels = 4, scope = 'first')
    r = repeated(h, times = [1, 0, 2])
    u, i = max_pool_with_indices(r, size = [1,2])
    t = transpose(u, perm = [1,0])
    y = l2_normalization(r, axes = [1], bias = 1)
}
"""


def old_archive(quantised: bool) -> bytes:
    rng = np.random.default_rng(3)
    bias = provisional_tensor(rng.normal(size=(1, 4)).astype("<f4"), 0, 32)
    if quantised:
        codes = rng.integers(0, 256, size=(4, 3)).astype("u1")
        algorithm = "linear_quantize(min = -1, max = 2.5, bits = 8)"
        filter = provisional_tensor(codes, 1, 8, algorithm)
    else:
        filter = provisional_tensor(rng.normal(size=(4, 3)).astype("<f4"), 0, 32)
    return model_archive(OLD, {"first/filter": filter, "first/bias": bias})


@pytest.mark.parametrize("quantised", [False, True], ids=["plain", "quantised"])
@pytest.mark.parametrize("target", ["out", "out.tgz"])
def test_a_provisional_network_becomes_final(tmp_path: Path, quantised: bool, target: str) -> None:
    source = old_archive(quantised)
    text = convert(source, tmp_path / target)
    assert text.startswith("version 1.0;\n")
    khronos(text)
    converted = load(tmp_path / target)
    assert_same_results(load(source), converted)
    if target == "out":
        found = pytest.importorskip("nnef").load_graph(str(tmp_path / target))
        data = {n: t.data for n, t in found.tensors.items() if t.data is not None}
        assert {array.shape for array in data.values()} == {(4, 3), (1, 4)}
        kinds = {array.dtype.name for array in data.values()}
        assert kinds == ({"uint8", "float32"} if quantised else {"float32"})


def test_where_an_algorithm_of_a_header_goes(tmp_path: Path) -> None:
    """Into graph.quant, or where that has another meaning, the codes become real numbers."""
    algorithm = "linear_quantize(min = 0, max = 255, bits = 8)"
    codes = provisional_tensor(np.arange(4, dtype="u1").reshape(2, 2), 1, 8, algorithm)
    text = f"""{COMPOSITIONAL}
        fragment scaled( x: tensor<scalar> ) -> ( y: tensor<scalar> )
        {{ y = x * variable(shape = [2,2], label = 'inner'); }}
        graph G( x ) -> ( y )
        {{
            x = external(shape = [2,2]);
            w = variable(shape = [2,2], label = 'w');
            state = variable(shape = [2,2], label = 'state');
            rounded = variable(shape = [2,2], label = 'rounded');
            t = update(state, scaled(x) + w * rounded);
            y = t + state;
        }}"""
    quant = '"rounded": linear_quantize(min = 0.0, max = 1.0, bits = 8);  # a comment'
    labels = ("inner", "w", "state", "rounded")
    source = model_archive(text, dict.fromkeys(labels, codes), quant)
    for flat, in_quant in ((False, {"w"}), (True, {"w", "inner"})):
        path = tmp_path / f"flat_{flat}"
        convert(source, path, flat=flat)
        stored = {label: read_tensor(path / f"{label}.dat") for label in labels}
        assert {label for label in labels if stored[label].dtype == np.uint8} == in_quant
        assert all(array.ravel().tolist() == [0, 1, 2, 3] for array in stored.values())
        assert_same_results(load(source), load(path))


def test_provisional_cases_become_final(shared_cases: Path, tmp_path: Path) -> None:
    load_graph = pytest.importorskip("nnef").load_graph
    manifest = json.loads((shared_cases / "nnef" / "manifest.json").read_text())
    cases = [case for case in manifest["cases"] if case["dialect"] == "provisional"]
    assert cases
    for case in cases:
        source = shared_cases / "nnef" / case["model"]
        convert(source, tmp_path / case["name"])
        load_graph(str(tmp_path / case["name"]))
        assert_same_results(load(source), load(tmp_path / case["name"]))


QUANTISED = """version 1.0;
graph G( x ) -> ( y, s )
{
    x = external(shape = [2,3]);
    w = variable(shape = [3,3], label = 'w');
    v = variable(shape = [2,3], label = 'v');
    m = matmul(x, w);
    s = update(v, m);
    y = relu(s);
}
"""
ENTRIES = """# activations
"x": linear_quantize(min = -2.0, max = 2.0, bits = 4);
"w": zero_point_linear_quantize(zero_point = [3, 4, 5], scale = [0.5, 0.25, 0.125], bits = 8,
                                signed = false, symmetric = false);
"m": linear_quantize(min = -3.0, max = 3.0, bits = 3);
"""


def quantised_archive(quant: str) -> bytes:
    rng = np.random.default_rng(4)
    codes = rng.integers(0, 9, size=(3, 3)).astype(np.uint8)
    header, items = encode_tensor(codes, quantized=True)
    state = np.zeros((2, 3), np.float32)
    return model_archive(QUANTISED, {"w": header + bytes(items), "v": state}, quant)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("quantization", ["apply", "ignore"])
def test_quantisation_is_kept(tmp_path: Path, flat: bool, quantization: Any) -> None:
    source = quantised_archive(ENTRIES)
    convert(source, tmp_path / "out", flat=flat)
    if not flat:
        assert (tmp_path / "out" / "graph.quant").read_text() == ENTRIES
    assert read_tensor(tmp_path / "out" / "w.dat").dtype == np.uint8
    assert_same_results(
        load(source, quantization=quantization),
        load(tmp_path / "out", quantization=quantization),
    )
    # `s` is another name for `m`; rounding it changes what `y` is.
    plain = load(source, quantization="ignore")
    assert np.any(results_of(plain)[0] != results_of(load(source))[0])


def test_quantisation_that_a_flat_document_cannot_hold_is_refused() -> None:
    entry = '"s": linear_quantize(min = -3.0, max = 3.0, bits = 3);'
    with pytest.raises(UnsupportedError, match="'s' and 'm' become one tensor") as caught:
        convert(quantised_archive(ENTRIES + entry), flat=True)
    assert caught.value.span is not None and caught.value.span.line == 6
    twice = f"""{COMPOSITIONAL}
        fragment two( x: tensor<scalar> ) -> ( a: tensor<scalar>, b: tensor<scalar> )
        {{ a = exp(x); b = a; }}
        fragment half( x: tensor<scalar> ) -> ( y: tensor<scalar> ) {{ y = x * 0.5; }}
        graph G( x ) -> ( a, b ) {{ x = external(shape = [2]); (a, b) = two(x); }}"""
    entry = '"a": linear_quantize(min = -3.0, max = 3.0, bits = 3);'
    with pytest.raises(UnsupportedError, match="'a' and 'b' become one tensor"):
        convert(archive(graph=twice, quant=entry), flat=True)
    with pytest.raises(UnsupportedError, match="'half' is a fragment"):
        convert(archive(graph=twice, quant='"x": half();'), flat=True)
    assert convert(archive(graph=twice, quant='"x": half();')) == twice
    old = "version 1.0 graph G( x ) -> ( y ) { x = external(shape = [2]) y = exp(x) }"
    with pytest.raises(UnsupportedError, match="is another operation"):
        convert(archive(graph=old, quant='"x": logarithmic_quantize(max = 4, bits = 4)'))


def test_text_that_depends_on_open_extents_is_refused() -> None:
    for value in ("shape_of(x)[1]", "1 if shape_of(x)[1] > 2 else 2"):
        text = f"""version 1.0
            fragment f( x: tensor ) -> ( y: tensor ) {{ y = reshape(x, shape = [{value}, -1]) }}
            graph G( x ) -> ( y ) {{ x = external(shape = [2,0]) y = f(x) }}"""
        with pytest.raises(UnsupportedError, match="an extent that is left open") as error:
            convert(archive(graph=text))
        assert "input_shapes=" in error.value.hint
        assert "[2,3]" in convert(archive(graph=text), input_shapes={"x": (2, 3)})


def test_a_keyword_of_load_that_says_nothing_about_the_document_is_refused() -> None:
    with pytest.raises(TypeError, match="convert\\(\\) got an unexpected keyword argument 'dtype'"):
        convert(model_archive(ALIASES, {}), dtype="bfloat16")


def test_broken_data_are_found() -> None:
    source = model_archive(ALIASES, {"s/w": np.zeros(3, np.float32)})
    convert(source)
    with pytest.raises(DataError, match="shape"):
        convert(source, "never-written")
    assert not Path("never-written").exists()


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "in.tar"
    path.write_bytes(model_archive(ALIASES, {"s/w": np.zeros(1, np.float32)}))
    assert ok("convert", path, "--flat") == convert(path, flat=True)
    saved = tmp_path / "out.tgz"
    assert ok("convert", path, saved, "--expand", "all") == f"saved {saved}\n"
    assert load(saved).graph.output_names == load(path).graph.output_names
    assert str(saved) in fails("convert", path, saved)
