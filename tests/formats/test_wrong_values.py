"""Every argument of every operation with values that nobody meant: a graph, or an NnefError.

`python -m tests.fuzz values` tries more.
"""

from __future__ import annotations

import pytest

from nnef_jax import NnefError, SemanticError
from nnef_jax.measure.summary import summarise
from nnef_jax.reading.read import read
from tests.fuzz import values
from tests.helpers import archive, model_of
from tests.tract_text import HEADER, error, graph

# Fragments of the standard that the dialect of tract cannot expand, or reads otherwise.
NOT_OF_TRACT = {"separable_deconv", "avg_roi_align", "max_roi_align"}


@pytest.mark.parametrize("tract", [True, False])
def test_the_calls_themselves_are_right(tract: bool) -> None:
    for call in values.calls(tract=tract):
        source = values.archive(values.document(call, tract=tract))
        if tract and call.operation in NOT_OF_TRACT:
            with pytest.raises(NnefError):
                read(source)
        else:
            assert "multiply-adds" in str(summarise(read(source)))


@pytest.mark.parametrize(
    "numbers", [range(1116), pytest.param(range(1116, 13392), marks=pytest.mark.slow)], ids=len
)
def test_wrong_values(numbers: range) -> None:
    ends = values.KIND.ends(numbers)
    for sort in values.SORTS:
        read = ends[f"{sort}/network"]
        count = sum(n for end, n in ends.items() if end.startswith(f"{sort}/"))
        assert 0.01 < read / count < 0.9


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


@pytest.mark.parametrize("value", ["1e30", "300.0"])
def test_a_number_beyond_the_integers_of_a_tensor(value: str) -> None:
    assert "does not fit uint8" in error(graph(f"y = §ne(x, {value});", x="[2,3] u8")).message


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
