"""Helpers for documents of tract's dialect: short ones, with marks where they are wrong.

A `§` in a text marks where an error is expected; it is taken out before the text is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import nnef_jax
from lowering.location import Source
from nnef_jax import Limits, NnefError
from nnef_jax.formats.tract.document import TractDocument
from nnef_jax.formats.tract.parser import parse
from nnef_jax.limits import Meter
from tests.helpers import model_of
from tests.text_support import MARK

HEADER = "version 1.0;\nextension tract_registry tract_core;\n"


def graph(
    body: str,
    fragments: str = "",
    *,
    results: str = "y",
    head: str = "",
    header: str = HEADER,
    **inputs: str,
) -> str:
    """Return a document with inputs 'SHAPE TYPE' by name, by default x of [2,3] in f32.

    `T` stands for `tensor<scalar>` in fragments.
    """
    inputs = inputs or {"x": "[2,3] f32"}
    fragments = re.sub(r"\bT\b", "tensor<scalar>", fragments)
    lines = [
        f"    {name} = tract_core_external(shape = {shape}, datum_type = '{type}');\n"
        for name, (shape, type) in ((n, text.rsplit(" ", 1)) for n, text in inputs.items())
    ]
    return (
        f"{header}{head}{fragments}\ngraph net( {', '.join(inputs)} ) -> ( {results} )\n"
        f"{{\n{''.join(lines)}    {body}\n}}\n"
    )


def parsed(text: str, limits: Limits | None = None) -> TractDocument:
    """Return the document of a text."""
    return parse(Source("graph.nnef", text), Meter(limits))


def run(text: str, *arrays: Any, data: Mapping[str, Any] | None = None, **options: Any) -> Any:
    """Return the results of a document as numpy arrays: one, or a list of several."""
    outputs = model_of(text, data=dict(data or {}), **options)(*arrays)
    return [np.asarray(y) for y in outputs] if isinstance(outputs, tuple) else np.asarray(outputs)


def errors(text: str, *arrays: Any, **options: Any) -> tuple[NnefError, ...]:
    """Return the errors of a text, or of a call with arrays, which must be at its marks."""
    pieces = text.split(MARK)
    offsets = [sum(map(len, pieces[: i + 1])) for i in range(len(pieces) - 1)]
    with pytest.raises(NnefError) as caught:
        model = model_of("".join(pieces), **options)
        model(*arrays)
    found = caught.value.errors
    assert [error.span and error.span.offset for error in found] == offsets, str(caught.value)
    for error in found:
        assert error.span is not None and f"{error.span}: {error.message}" in error.block()
        assert re.search(r"graph\.nnef:\d+:\d+: ", error.block()) and "^" in error.block()
    return found


def error(text: str, *arrays: Any, **options: Any) -> NnefError:
    """Return the only error of a text, or of a call with arrays."""
    (found,) = errors(text, *arrays, **options)
    return found


def model(text: str, **options: Any) -> nnef_jax.Model:
    """Return the model of a text without data."""
    return model_of(text, **options)
