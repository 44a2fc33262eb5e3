"""What results share: plain values, tables, trees of jax, lazy names."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nnef_jax
from nnef_jax import analysis
from nnef_jax.results import Result, axes, result, static, table_of

FOLDER = Path(analysis.__file__).parent


@result
class Found(Result):
    values: Any
    more: Mapping[str, Any]
    name: str = static("x")

    def table(self) -> Any:
        first = "[bold]<a>\x1b[2J", 1234567, 0.123456789, True
        rows = [first, ("b", None, np.float32(-2), False)]
        return table_of(self.name, ("layer", "count", "error", "found"), rows)


def found() -> Found:
    return Found(values=jnp.array([1.0, jnp.nan, jnp.inf, -jnp.inf]), more={"n": np.int8([[3]])})


def test_plain_values_are_json() -> None:
    plain = found().to_dict()
    assert plain == {
        "values": [1.0, "NaN", "Infinity", "-Infinity"],
        "more": {"n": [[3]]},
        "name": "x",
    }
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert Found(values=jnp.array([0.5], jnp.bfloat16), more={}).to_dict()["values"] == [0.5]


def test_tables_show_names_and_numbers_as_they_are() -> None:
    lines = str(found()).splitlines()
    assert lines[0] == "x"
    assert [line.split() for line in lines if "," in line or "-2" in line] == [
        [r"[bold]<a>\u001b[2J", "1,234,567", "0.12346", "yes"],
        ["b", "-2", "no"],
    ]
    assert "\x1b" not in str(found())
    page = found()._repr_html_()
    assert r">[bold]&lt;a&gt;\u001b[2J</td>" in page
    assert "overflow-x: auto" in page  # on a narrow screen the table scrolls


def test_a_table_without_rows_is_its_title() -> None:
    class Empty(Found):
        def table(self) -> Any:
            return table_of("<none>", ("layer",), [])

    assert str(Empty(values=0, more={})) == "<none>"
    page = Empty(values=0, more={})._repr_html_()
    assert "&lt;none&gt;" in page and "<table" not in page


def test_a_result_is_short_in_a_prompt() -> None:
    assert repr(found()).startswith("Found(values=float32[4], more={'n': array(")


def test_functions_that_return_results_are_jitted_and_mapped() -> None:
    def function(x: jax.Array) -> Found:
        return Found(values=x * 2, more={}, name="y")

    mapped = jax.jit(jax.vmap(function))(jnp.arange(3))
    assert mapped.name == "y" and mapped.values.tolist() == [0, 2, 4]


def test_a_missing_matplotlib_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        nnef_jax.UnsupportedError, match=r'needs matplotlib\s+hint: pip install "nnef_jax'
    ):
        axes()


def test_names_resolve() -> None:
    assert nnef_jax.analysis is analysis
    for name in analysis.__all__:
        assert getattr(analysis, name).__name__ == name
        # Importing a module makes it an attribute of the package, over a function of that name.
        assert not (FOLDER / f"{name}.py").exists()
    assert dir(analysis) == sorted(analysis.__all__)
    with pytest.raises(AttributeError, match="no attribute 'salience'"):
        analysis.salience  # noqa: B018
