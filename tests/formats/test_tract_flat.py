"""Flat documents of the dialect: each is read as the graph that it was written from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnef_jax
from lowering.graph import Graph
from nnef_jax import UnsupportedError, convert
from nnef_jax.reading.read import read
from tests.helpers import archive, model_of

ROOT = Path(__file__).resolve().parents[1]
ARCHIVES = [
    *(f"tract_archives/{x}" for x in ("convolutions", "decoder", "indices", "quantised", "trees")),
    *(f"torch_networks/{x}" for x in ("gpt_fixed", "int8", "q40", "resnet", "tcn", "unet")),
]
HEAD = "version 1.0;\nextension tract_registry tract_core;\n"
X = np.array([[-1.5, 0.25], [2.5, 1.0]], np.float32)


def said(graph: Graph) -> list[Any]:
    """What operations are, but for copies: results may have other names inside a graph."""
    return [
        (o.kind, o.attributes, [x for x in o.operands if isinstance(x[1], bool | int | float)])
        for o in graph.operations
        if o.kind != "copy"
    ]


@pytest.mark.parametrize("name", ARCHIVES)
def test_archives(name: str, tmp_path: Path) -> None:
    source, flat = ROOT / f"{name}.nnef.tgz", tmp_path / "flat.tar"
    text = convert(source, flat, flat=True)
    assert "fragment" not in text and text == convert(source, flat=True)
    before, after = read(source), read(flat)
    assert said(after.graph) == said(before.graph)
    assert after.graph.output_names == before.graph.output_names
    assert [(x.name, x.type) for x in after.graph.inputs] == [
        (x.name, x.type) for x in before.graph.inputs
    ]
    for label, array in before.data.items():
        np.testing.assert_array_equal(after.data[label], array)


def flattened(text: str, **data: Any) -> tuple[str, np.ndarray, np.ndarray]:
    """The flat text of a document, and what both of them compute of X."""
    flat = convert(archive(graph=text), flat=True)
    return flat, *(np.asarray(model_of(x, data=data)(X)) for x in (text, flat))


def test_fragments_names_and_casts() -> None:
    flat, before, after = flattened(
        HEAD + "extension tract_symbol B;\n"
        "fragment twice(a: tensor<scalar>) -> (b: tensor<scalar>) { b = a + a; }\n"
        'graph g(i"x.1") -> (i"y/z") {\n'
        '  i"x.1" = tract_core_external(shape = [B, 2], datum_type = "f32");\n'
        '  h = tract_core_cast(twice(i"x.1"), to = "f16");\n'
        '  i"y/z" = max(h * 3, -inf);\n}\n'
    )
    assert "extension tract_symbol B;" in flat and "shape = [B, 2]" in flat
    assert 'i"x.1"' in flat and 'i"y/z"' in flat and "-inf" in flat
    assert before.dtype == after.dtype == np.float16
    np.testing.assert_array_equal(before, after)


def test_constants_have_their_types() -> None:
    body = "y = tract_core_cast(select(x > 0.0, [[1, 2]], 5), to = 'f32') + [[0.5, -0.25]];"
    _, before, after = flattened(f"{HEAD}graph g(x) -> (y) {{\n{EXTERNAL}{body}\n}}\n")
    np.testing.assert_array_equal(before, after)


EXTERNAL = "x = tract_core_external(shape = [2, 2], datum_type = 'f32');\n"


def test_entries_of_graph_quant_become_operations(tmp_path: Path) -> None:
    text = f"{HEAD}graph g(x) -> (y) {{\n{EXTERNAL}h = x * 0.5; y = h + 1.0;\n}}\n"
    quant = '"h": zero_point_linear_quantize(zero_point = 0, scale = 0.5, bits = 8, signed = true);'
    source = archive(graph=text, quant=quant)
    flat = convert(source, tmp_path / "flat", flat=True)
    assert "zero_point_linear_quantize" in flat
    assert sorted(x.name for x in (tmp_path / "flat").iterdir()) == ["graph.nnef"]
    expected = nnef_jax.load(source)(X)
    assert not np.array_equal(expected, X * 0.5 + 1)
    np.testing.assert_array_equal(nnef_jax.load(tmp_path / "flat")(X), expected)


def test_all_that_has_no_flat_form_is_named() -> None:
    with pytest.raises(UnsupportedError) as caught:
        convert(ROOT / "tract_archives/stream_recurrence.nnef.tgz", flat=True)
    text = "\n".join(error.message for error in caught.value.errors)
    assert "'/gru.3_h_source' is a state, which has no flat form" in text
    assert "'tract.pulse_mask' has no flat form" in text
    with pytest.raises(UnsupportedError, match="'reshape' depends on an extent that is left open"):
        convert(ROOT / "tract_archives/attention.nnef.tgz", flat=True)


def test_a_document_that_is_not_to_be_flat_is_kept() -> None:
    source = ROOT / "tract_archives/recurrent.nnef.tgz"
    assert convert(source) == read(source).frontend.members({}, None).members["graph.nnef"].decode()
