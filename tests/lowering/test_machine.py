"""What is chosen by the profile of a machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax

from lowering.cpu.rates import measured
from lowering.cpu.xla_options import compiler_options
from lowering.kernels.levels import noted
from lowering.machine import DEFAULT, MachineProfile, held_profile, profile, using
from tests.machines import RECORDS, profile_of
from tests.programs import optimised

# bfloat16, 8 bits, vectors of 512 bits, a row by two threads
EXPECTED = {
    "AVX2": (False, False, True, True),  # it has no such vectors: to ask for them changes nothing
    "AVX-512 VNNI": (False, False, True, False),
    "AMX": (True, True, True, False),
    "Zen 4": (True, False, True, True),
    "Zen 5": (True, True, True, True),
    "slow AVX-512": (False, False, False, True),
    "ARM": (False, True, True, False),
}


@pytest.mark.parametrize("name", RECORDS)
def test_decisions(name: str) -> None:
    found = profile_of(RECORDS[name]).decisions()
    order = "multiplies_bfloat16", "multiplies_bytes", "keeps_wide_vectors", "pairs_rows"
    assert found == dict(zip(order, EXPECTED[name], strict=True))


def test_what_is_shipped_gains_nothing_by_fewer_bits() -> None:
    assert not DEFAULT.multiplies_bfloat16 and not DEFAULT.multiplies_bytes
    assert DEFAULT.keeps_wide_vectors and not DEFAULT.pairs_rows
    assert compiler_options(1 << 20) == {
        "xla_cpu_experimental_ynn_fusion_type": "",
        "xla_cpu_prefer_vector_width": "512",
    }


def test_one_thread_has_no_pairs() -> None:
    assert not dataclasses.replace(DEFAULT, threads=1).pairs_rows


def test_a_profile_holds_for_a_while() -> None:
    other = profile_of(RECORDS["AMX"])
    assert held_profile() is None and profile() is DEFAULT
    with using(other):
        assert held_profile() is profile() is other
    assert held_profile() is None


def narrow(x: Array, w: Array) -> Array:
    return x @ w


def codes(x: Array, w: Array) -> Array:
    def rounded(x: Array) -> Array:
        level = jnp.round(x * 10)
        return noted(level * 0.1, level, 0.1, 0.0, -128, 127)

    return rounded(x) @ rounded(w)


def recurrent(x: Array, w: Array) -> Array:
    def step(h: Array, x: Array) -> tuple[Array, Array]:
        h = jnp.tanh(x + h @ w)
        return h, h

    return lax.scan(step, jnp.zeros((1, w.shape[0])), x[:, None])[1]


CHOICES: dict[str, tuple[Callable[..., Any], Any, int]] = {
    "narrow": (narrow, jnp.bfloat16, 64),
    "codes": (codes, np.float32, 64),
    "recurrent": (recurrent, np.float32, 512),
}


def programs(kind: str) -> str:
    function, dtype, extent = CHOICES[kind]
    types = jax.ShapeDtypeStruct((4, extent), dtype), jax.ShapeDtypeStruct((extent, extent), dtype)
    chosen = optimised(lambda w, x: [function(x[0], w[0])], alone=True)
    text = str(jax.make_jaxpr(chosen)([types[1]], [types[0]]))
    return f"{text}\n{compiler_options(1 << 20, bfloat16=kind == 'narrow', in_bytes=False)}"


@pytest.mark.parametrize("kind", CHOICES)
def test_choices_are_those_of_the_profile(kind: str) -> None:
    found: dict[tuple[bool, ...], str] = {}
    for name in RECORDS:
        with using(profile_of(RECORDS[name])):
            text = programs(kind)
            assert programs(kind) == text
        assert found.setdefault(EXPECTED[name], text) == text
    assert len(set(found.values())) > 1


@pytest.mark.parametrize("name", RECORDS)
def test_no_profile_changes_values_beyond_rounding(name: str) -> None:
    draw = np.random.default_rng(0).standard_normal
    x, w = draw((4, 512)).astype(np.float32), (draw((512, 512)) / 30).astype(np.float32)
    wanted, h = [], np.zeros(512)
    for row in x:
        h = np.tanh(row.astype(np.float64) + h @ w.astype(np.float64))
        wanted.append(h)
    with using(profile_of(RECORDS[name])):
        (found,) = optimised(lambda w, x: [recurrent(x[0], w[0])], alone=True)([w], [x])
    np.testing.assert_allclose(found[:, 0], wanted, rtol=1e-4, atol=1e-5)


def test_a_host_is_measured() -> None:
    found = measured(3)
    assert found.threads == 3
    rates = [getattr(found, name) for name in MachineProfile.names()]
    rates += [getattr(found.costs, name) for name in found.costs.names()]
    assert len(rates) == 10 and all(type(x) is float and 0 < x < 1e15 for x in rates)
    # An operation takes more than a nanosecond to start, and less than a tenth of a second.
    assert 1e-9 < found.costs.start < 0.1


def test_rates_that_hardly_differ_are_equal() -> None:
    from lowering.cpu import rates

    first, same, more, less = rates.rounded([1e11, 1.08e11, 1.1e11, 0.9e11])
    assert first == same and less < first < more
    assert rates.rounded([first * 1.01]) == [first]
