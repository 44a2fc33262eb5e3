"""Each class of results keeps the contract of `nnef_jax.Result`."""

from __future__ import annotations

import inspect
import json
import pickle
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, fields
from functools import cache
from html.parser import HTMLParser
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from nnef_jax import Result, analysis, openvx
from nnef_jax.measure.device_costs import DeviceCost, DeviceRow
from nnef_jax.measure.hlo import Collective
from tests.analysis.networks import two_layers

KEY = jax.random.key(0)
X = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
OTHER = np.random.default_rng(1).normal(size=(2, 3)).astype(np.float32)


@cache
def model(batch: int = 2) -> nnef_jax.Model:
    draw = np.random.default_rng(2).normal
    return two_layers(draw(size=(3, 4)), draw(size=(4, 2)), batch=batch)


def device_cost() -> DeviceCost:
    """Return a cost on devices as of a compiler that is not installed."""
    collective = Collective("all-reduce", 2, 1024, 1536.0, 4)
    rows = (DeviceRow(("a", "b"), 2e-6, ("conv", "relu"), "stem"), DeviceRow((), 1e-6))
    return DeviceCost(
        "net", "v5e:2x2", {"data": 4}, "", 4096, 1024, 2048, 100, 1 << 30, 10_000, 5000.0, 9000.0,
        1e-9, 2e-9, 3e-6, {"Lu": 2}, 1, (collective,), 1e-8, rows,
    )  # fmt: skip


def loss(y: Any) -> Any:
    return (y**2).mean()


def loss_to(y: Any, wanted: Any) -> Any:
    return loss(y - wanted)


def gradients() -> Any:
    return analysis.saliency(model(), X).values


PAIR = X, np.zeros((2, 2), np.float32)
TREES: dict[str, Callable[[], Result]] = {
    "Adversarial": lambda: analysis.fgsm(model(), X, epsilon=0.1),
    "Attribution": lambda: analysis.saliency(model(), X),
    "Bounds": lambda: analysis.bounds(model(), X, epsilon=0.1),
    "Concept": lambda: analysis.tcav(model(), X, layer="r1", concept=X, counterexamples=OTHER),
    "HessianEigenvalues": lambda: analysis.hessian_eigenvalues(model(), X, loss=loss),
    "HessianTrace": lambda: analysis.hessian_trace(model(), X, loss=loss, samples=2),
    "Infidelity": lambda: analysis.infidelity(model(), X, values=gradients(), key=KEY),
    "Influence": lambda: analysis.tracin(model(batch=1), PAIR, PAIR, loss=loss_to),
    "JacobianSpectrum": lambda: analysis.jacobian_spectrum(model(), X),
    "MaxSensitivity": lambda: analysis.max_sensitivity(model(), analysis.saliency, X, key=KEY),
    "Maximised": lambda: analysis.activation_maximisation(model(), X, target=1, key=KEY, steps=2),
    "Sensitivity": lambda: analysis.sensitivity(model(), X, loss=loss),
}
RECORDS: dict[str, Callable[[], Result]] = {
    "Benchmark": lambda: nnef_jax.benchmark(model(), rounds=1, seconds=0),
    "Comparison": lambda: analysis.compare(model(), model().with_params(_doubled()), X),
    "Cost": lambda: nnef_jax.cost(model()),
    "DeviceCost": lambda: device_cost(),
    "Difference": lambda: nnef_jax.diff(model(), model().with_params(_doubled())),
    "Profile": lambda: nnef_jax.profile(model(), calls=1),
    "ProfileReport": lambda: openvx.check_profile(model(), "openvx-16bit"),
    "Statistics": lambda: analysis.activation_statistics(model(), [X]),
    "Stats": lambda: openvx.lower(model(), on_unfit="float").stats(X),
    "Summary": lambda: model().summary(),
    "WeightStatistics": lambda: nnef_jax.weight_statistics(model()),
}


def _doubled() -> Any:
    return jax.tree.map(lambda x: 2 * x, model().params)


@cache
def made(name: str) -> Result:
    return (TREES | RECORDS)[name]()


def classes() -> Iterator[type[Result]]:
    """The subclasses of all modules: optional packages alone may be missing."""
    for module in pkgutil.walk_packages(nnef_jax.__path__, "nnef_jax."):
        try:
            import_module(module.name)
        except ImportError as error:
            assert not (error.name or "nnef_jax").startswith(("nnef_jax", "lowering"))
    pending = [Result]
    while pending:
        pending += (below := pending.pop().__subclasses__())
        yield from (x for x in below if x.__module__.startswith("nnef_jax."))


def test_every_class_is_here() -> None:
    assert sorted(x.__name__ for x in classes()) == sorted(TREES | RECORDS)


class _Cells(HTMLParser):
    """The texts of cells and paragraphs, and the tags that are open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.tags, self.attributes = list[str](), set[str](), set[str]()
        self.texts: dict[str, list[str]] = {"p": [], "th": [], "td": []}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag in self.texts:
            self.texts[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts[self.open[-1]][-1] += data


@pytest.mark.parametrize("name", sorted(TREES | RECORDS))
def test_the_contract(name: str) -> None:
    result = made(name)
    assert type(result).__name__ == name
    table = result.table()
    cells = [str(cell) for column in table.columns for cell in column.cells]
    assert any(cells) and all(cell in str(result) for cell in cells)
    assert not str(result).endswith("\n")

    page = _Cells(result._repr_html_())
    assert sorted(page.texts["td"]) == sorted(cells) and page.texts["p"] == [str(table.title)]
    assert page.texts["th"] == [str(x.header) for x in table.columns] * table.show_header
    assert not page.open and page.attributes == {"style"}  # nothing is loaded
    assert page.tags <= {"div", "p", "table", "thead", "tbody", "tr", "th", "td"}

    plain = result.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    names = [field.name for field in fields(result)]  # pyright: ignore[reportArgumentType]
    assert repr(result).startswith(f"{name}({names[0]}=")
    with pytest.raises(FrozenInstanceError):
        setattr(result, names[0], None)

    again = pickle.loads(pickle.dumps(result))
    assert type(again) is type(result)
    assert (str(again), again.to_dict()) == (str(result), plain)
    if draw := getattr(result, "plot", None):
        assert next(iter(inspect.signature(draw).parameters.values())).default is None


@pytest.mark.parametrize("name", sorted(TREES | RECORDS))
def test_results_of_arrays_are_trees_of_them(name: str) -> None:
    result = made(name)
    leaves, structure = jax.tree.flatten(result)
    if name in RECORDS:
        assert leaves == [result]
        return
    assert leaves and all(isinstance(x, jax.Array) for x in leaves)
    assert jax.tree.unflatten(structure, leaves).to_dict() == result.to_dict()
    assert jax.jit(lambda x: x)(result).to_dict() == result.to_dict()
    both = jax.vmap(lambda x: x, axis_size=2)(jax.tree.map(lambda x: jnp.stack([x, x]), result))
    assert str(jax.tree.map(lambda x: x[1], both)) == str(result)
