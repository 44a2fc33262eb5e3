"""Texts of a few lines that ask for more memory than any machine has are refused at once."""

from __future__ import annotations

import pytest

import nnef_jax
from tests.helpers import model_of


@pytest.mark.parametrize(
    ("statements", "name"),
    [
        ("x = external(shape = [99999999999,99999999999]); y = neg(x);", "x"),
        ("x = external(shape = [1,3]); y = tile(x, repeats = [1000000,1000000]);", "y"),
        ("x = external(shape = [1,1,3]); y = nearest_upsample(x, factor = [99999999999]);", "y"),
        ("x = external(shape = [1,3]); y = pad(x, padding = [(0,0),(0,99999999999)]);", "y"),
        ("x = external(shape = [1]); y = constant(shape = [999999,999999], value = [1.0]);", "y"),
        ("x = external(shape = [0,99999]); y = tile(x, repeats = [1,999999]);", "y"),
    ],
    ids=["external", "tile", "upsample", "pad", "constant", "open batch"],
)
def test_tensors_beyond_bounds(statements: str, name: str) -> None:
    text = f"version 1.0;\ngraph g( x ) -> ( y )\n{{\n{statements}\n}}\n"
    with pytest.raises(nnef_jax.LimitError, match=f"'{name}' has .* items, more than") as caught:
        model_of(text)
    assert "tensor_items" in caught.value.hint
    assert caught.value.span and caught.value.span.line == 4


def test_the_bound_can_be_moved() -> None:
    text = "version 1.0; graph g( x ) -> ( y ) { x = external(shape = [2,3]); y = neg(x); }"
    assert model_of(text, limits=nnef_jax.Limits(tensor_items=6)).outputs[0].shape == (2, 3)
    with pytest.raises(nnef_jax.LimitError):
        model_of(text, limits=nnef_jax.Limits(tensor_items=5))
