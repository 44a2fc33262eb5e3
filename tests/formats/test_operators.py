"""The registry of operators: versions, inputs, attributes, families."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nnef_jax.flattening.operators import registry as module
from nnef_jax.flattening.operators.attributes import number
from nnef_jax.flattening.operators.registry import Operators, operation
from nnef_jax.formats.tract.operators import OPERATORS
from tests.helpers import model_of


class Site(SimpleNamespace):
    """A site of some operands and attributes."""

    def has(self, i: int) -> bool:
        return i < len(self.operands) and self.operands[i] is not None

    def input(self, i: int) -> Any:
        return self.operands[i]

    def optional(self, i: int) -> Any:
        return self.operands[i] if self.has(i) else None

    def number(self, name: str, default: float | None) -> Any:
        return self.attributes.get(name, default)


def run(registry: Operators, name: str, version: int, *operands: Any, **attributes: Any) -> Any:
    operator = registry.get(name, version)
    assert operator is not None
    return operator.run(Site(operands=operands, attributes=attributes))


def test_the_latest_version_that_has_begun_counts() -> None:
    registry = Operators(key=str.lower)
    registry.operator("A", until=3)(lambda site: 1)
    registry.operator("A", since=5, until=8)(lambda site: 5)
    registry.operator("A", since=7, domain="com.acme")(lambda site: 7)
    assert [run(registry, "a", version) for version in (1, 3, 5, 8)] == [1, 1, 5, 5]
    assert [registry.get("a", version) for version in (4, 9)] == [None, None]
    assert registry.get("a", 6, "com.acme") is None and registry.get("b", 5) is None
    assert [x.since for x in registry] == [1, 5, 7]
    with pytest.raises(ValueError, match="'a' has two meanings since version 5"):
        registry.operator("a", since=5)(lambda site: 6)


def test_inputs_and_attributes_are_handed_to_meanings() -> None:
    registry = Operators()

    @registry.operator("All")
    def _all(site: Any, x: Any, *others: Any, scale: float = number("scale", 2.0)) -> Any:
        return x, others, scale

    @registry.operator("Some", until=1, scale=number("factor", 3.0))
    @registry.operator("Some", since=2, scale=4.0)
    def _some(site: Any, x: Any, y: Any = None, *, scale: float = number("scale", 2.0)) -> Any:
        return x, y, scale

    @registry.operator("Group", a=number("a", 1.0), b=number("b", 2.0))
    def _group(site: Any, **attributes: Any) -> Any:
        return attributes

    assert run(registry, "All", 1, 1, None, 3) == (1, (None, 3), 2.0)
    assert run(registry, "Some", 1, 1, factor=5.0, scale=6.0) == (1, None, 5.0)
    assert run(registry, "Some", 2, 1, 2, factor=5.0) == (1, 2, 4.0)
    assert run(registry, "Group", 1, b=7.0) == {"a": 1.0, "b": 7.0}


@pytest.mark.parametrize("attributes", [{}, {"scale": 1.0, "other": 1.0}])
def test_attributes_without_a_parameter_or_a_value(attributes: dict[str, float]) -> None:
    def meaning(site: Any, *, scale: float) -> float:
        return scale

    with pytest.raises(TypeError, match="meaning takes"):
        Operators().operator("A", **attributes)(meaning)


def test_a_row_takes_no_attributes_from_the_decorator() -> None:
    with pytest.raises(TypeError, match="alpha"):
        Operators().operator("Elu", alpha=number("alpha", 1.0))(operation("elu"))


def test_threads_wait_for_families(monkeypatch: pytest.MonkeyPatch) -> None:
    registry, imported = Operators(), list[str]()
    registry.families = ("first", "second")

    def import_slowly(name: str) -> ModuleType:
        time.sleep(0.05)
        imported.append(name)
        registry.operator(name)(lambda site: name)
        return sys

    monkeypatch.setattr(module, "import_module", import_slowly)
    with ThreadPoolExecutor(4) as pool:
        names: Sequence[Any] = [*pool.map(registry.get, ["second"] * 4)]
    assert [x.name for x in names] == ["second"] * 4 and imported == ["first", "second"]


def test_numbers_have_the_dtype_of_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 16 bits too: a number by itself is of 32."""
    OPERATORS.get("tract_core_erf")  # imports the families
    registry = Operators()
    registry.operator("tract_core_erf")(lambda site, x: site.last.mul(site.step.add(x, 1), 0.5))
    monkeypatch.setattr(
        OPERATORS, "_by_name", {**vars(OPERATORS)["_by_name"], **vars(registry)["_by_name"]}
    )
    head = "version 1.0; extension tract_registry tract_core; graph g(x) -> (y) {"
    x = "x = tract_core_external(shape = [3], datum_type = 'f16');"
    model = model_of(f"{head} {x} y = tract_core_erf(x); }}")
    np.testing.assert_array_equal(model(np.float16([0, 1, 3])), np.float16([0.5, 1, 2]))
