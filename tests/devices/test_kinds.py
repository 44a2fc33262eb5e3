"""Every row of the tables of operations compiles for a TPU and a GPU, in each dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import nnef_jax
from tests.devices.compilation import Case, refusals
from tests.devices.limits import LIMITS, Limit, unexpected
from tests.helpers import model_of
from tests.op_cases import NNEF, TRACT, OpCase, document
from tests.operation_checks import is_differentiated

pytestmark = [pytest.mark.devices, pytest.mark.slow]

TOPOLOGIES = ("v5e:1", "h100")
DTYPES = ("float32", "bfloat16", "float16")
TRACTS = {"float32": "f32", "float16": "f16"}  # tract has no bfloat16


def model_for(case: OpCase, dtype: str) -> nnef_jax.Model:
    if case.dialect == "tract":
        return model_of(document(case, real=TRACTS[dtype]))
    return model_of(document(case), dtype=dtype)


def types_of(model: nnef_jax.Model) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(spec.shape, spec.dtype) for spec in model.inputs]


def call_of(case: OpCase, dtype: str) -> Case:
    """The network as a pure function of its inputs."""
    model = model_for(case, dtype)
    return lambda *inputs: model.apply({}, *inputs), types_of(model)


def gradient_of(case: OpCase, dtype: str) -> Case:
    """The gradient of the sum of its real outputs."""
    model = model_for(case, dtype)
    types = types_of(model)
    real = [i for i, x in enumerate(types) if jnp.issubdtype(x.dtype, jnp.floating)]

    def total(*inputs: Any) -> Any:
        outputs = jax.tree.leaves(model.apply({}, *inputs))
        return sum(x.sum() for x in outputs if jnp.issubdtype(x.dtype, jnp.floating))

    return jax.grad(total, real), types


def cases_of(cases: Sequence[OpCase], dtype: str, make: Any) -> dict[str, Case]:
    return {f"{x.dialect}/{x.name}": make(x, dtype) for x in cases}


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_row_compiles(topology: str, dtype: str) -> None:
    cases = cases_of(NNEF, dtype, call_of)
    if dtype in TRACTS:
        cases |= cases_of(TRACT, dtype, call_of)
    assert not unexpected(topology, refusals(topology, cases))


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_every_derivative_compiles(topology: str) -> None:
    rows = [case for case in (*NNEF, *TRACT) if is_differentiated(case)]
    cases = cases_of(rows, "float32", gradient_of)
    assert not unexpected(topology, refusals(topology, cases))


def test_every_row_compiles_in_64_bits() -> None:
    with jax.enable_x64(True):
        cases = cases_of(NNEF, "float64", call_of)
        reasons = refusals("h100", cases)
    assert not unexpected("h100", reasons)


@pytest.mark.parametrize("limit", LIMITS)
def test_a_limit_is_one_of_plain_jax(limit: Limit) -> None:
    (reason,) = refusals(limit.topology, {"plain": (limit.plain, limit.types)}).values()
    assert limit.reason in reason
