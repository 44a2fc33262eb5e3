"""Wrong types and attributes of every kind end in a result, or in an error with its place."""

from __future__ import annotations

import numpy as np
import pytest

from lowering.errors import InvalidShape
from lowering.graph import TensorType
from lowering.ops import rules
from tests.fuzz import kind

# Of numbers that are beyond a dtype: they become infinite, or another integer.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning")

KIND = kind("operations")


@pytest.mark.parametrize("part", range(4))
def test_mutants(part: int) -> None:
    KIND.ends(range(part, 4 * len(KIND.sorts()), 4))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_more_mutants(seed: int) -> None:
    KIND.ends(range(60 * len(KIND.sorts())), seed)


@pytest.mark.parametrize("stride", [2**63, -(2**63)])
def test_a_stride_that_no_integer_of_64_bits_holds(stride: int) -> None:
    x = np.arange(8.0)
    found = rules["slice"].lower(x, (0,), (5,), (2 if stride < 0 else 7,), (stride,))
    np.testing.assert_array_equal(found, [5])


def test_more_items_than_places_are_numbered() -> None:
    with pytest.raises(InvalidShape, match="2147483647 items, their indices have 32 bits"):
        rules["unique"].infer(TensorType((2**31 - 1,), "float32"), 0)


def test_logical_values_are_cast_as_they_are() -> None:
    x = np.array([True, False])
    np.testing.assert_array_equal(rules["cast"].lower(x, "bool"), x)


def test_more_regions_than_places_are_refused() -> None:
    image, scores = TensorType((2, 3), "float32"), TensorType((2, 1, 3, 4), "float32")
    anchors, deltas = TensorType((3, 4, 1, 4), "float32"), TensorType((2, 4, 3, 4), "float32")
    with pytest.raises(InvalidShape, match=r"'regions' .* its indices have 32 bits"):
        rules["anchored_proposals"].infer(image, anchors, deltas, scores, 10, 2**31 - 1, True)
