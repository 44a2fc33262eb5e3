"""Every argument of every operation with values that nobody meant: a graph, or an NnefError.

What is tried here is a sample, always the same; `wrong_values.documents` has all there is.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from lowering.multiply_adds import total
from nnef_jax import NnefError, SemanticError
from nnef_jax.reading import read
from nnef_jax.summary import summarise
from tests import wrong_values
from tests.formats.test_tract_resources import tar
from tests.helpers import archive, model_of
from tests.tract_text import HEADER, error, graph
from tests.wrong_values import document, documents, quantizations

# Fragments of the standard that the dialect of tract cannot expand, or reads otherwise.
NOT_OF_TRACT = {"separable_deconv", "avg_roi_align", "max_roi_align"}


def tried(text: str, quant: str = "", **options: Any) -> bool:
    """Whether a network can be read; then its summary can be made too."""
    try:
        network = read(tar(wrong_values.members(text, quant)), **options)
    except NnefError as error:
        assert all(e.message for e in error.errors)
        return False
    assert total(network.graph) >= 0
    return True


@pytest.mark.parametrize("tract", [True, False])
def test_the_calls_themselves_are_right(tract: bool) -> None:
    for call in wrong_values.calls(tract=tract):
        text = document(call, tract=tract)
        if tract and call.operation in NOT_OF_TRACT:
            assert not tried(text)
        else:
            network = read(tar(wrong_values.members(text)))
            assert "multiply-adds" in summarise(network)


SETTINGS: dict[str, tuple[dict[str, bool], int]] = {
    "tract": ({"tract": True}, 19),
    "tract-closed": ({"tract": True, "is_open": False}, 23),
    "tract-pulsed": ({"tract": True, "pulsed": True}, 7),
    "standard": ({"tract": False}, 13),
    "standard-closed": ({"tract": False, "is_open": False}, 29),
}


@pytest.mark.parametrize("rarer", [2, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SETTINGS)
def test_wrong_values(name: str, rarer: int) -> None:
    setting, step = SETTINGS[name]
    chosen = itertools.islice(documents(**setting), 0, None, rarer * step + rarer - 1)
    found = [tried(text) for text in chosen]
    assert len(found) > 300 // rarer and 0.01 < sum(found) / len(found) < 0.9


@pytest.mark.parametrize("quantization", ["apply", "ignore"])
@pytest.mark.parametrize("tract", [True, False])
def test_wrong_values_in_graph_quant(tract: bool, quantization: Any) -> None:
    entries = itertools.islice(quantizations(tract=tract), 0, None, 5)
    found = [tried(text, quant, quantization=quantization) for text, quant in entries]
    assert any(found) and not all(found)


# What was found so


@pytest.mark.parametrize(
    "body",
    [
        "y = §cast(x);",
        "y = §cast<?>(x);",
        "y, z = §copy_n(x, times = nan);",
        "y = §tract_core_range(0, inf, 1);",
        "y = §tract_core_range(nan, 3, 1);",
        "y = §tract_core_scan('f', [('a', x, 0, nan)], [], [], [('a', 'full', 0, 1)]);",
        "y = §tract_core_scan('f', [('a', x, nan, 1)], [], [], [('a', 'full', 0, 1)]);",
        "y = §tract_core_scan('f', [('a', x, 0, 1)], [], [], [('a', 'full', 0, nan)]);",
        "y = §tract_core_scan('f', [('a', x, 0, 1)], [], [], [('a', 'full', 0, 1)], skip = nan);",
    ],
)
@pytest.mark.parametrize("shape", ["[2,3]", "[S,3]"])
def test_values_that_are_none(body: str, shape: str) -> None:
    if "range(nan" in body and "S" in shape:  # it may depend on an extent that is open
        return
    text = graph(body, "fragment f( a: T ) -> ( a: T ) { }", x=f"{shape} f32")
    assert isinstance(error(text), SemanticError)


def test_cast_by_its_generic_argument() -> None:
    for generic, dtype in (("scalar", "float32"), ("integer", "int32"), ("logical", "bool")):
        (output,) = model_of(graph(f"y = cast<{generic}>(x);")).outputs
        assert output.dtype == dtype


@pytest.mark.parametrize("name", ["bits", "signed", "symmetric"])
@pytest.mark.parametrize("value", ["[8]", "[]", "[true]", "[8, 8]"])
@pytest.mark.parametrize("head", ["version 1.0;\n", HEADER])
def test_what_is_the_same_for_all_channels(name: str, value: str, head: str) -> None:
    given = {"zero_point": 3, "scale": 0.5, "bits": 8, "signed": "true", "symmetric": "false"}
    listed = ", ".join(f"{k} = {v}" for k, v in {**given, name: value}.items())
    text = f"{head}graph g(x) -> (y) {{ x = external<scalar>(shape = [2]); y = relu(x); }}"
    with pytest.raises(NnefError, match=rf"'{name}'"):
        read(archive(graph=text, quant=f'"y": zero_point_linear_quantize({listed});'))
