"""Measures the rates of the host by a handful of small programs, in half a second.

A program is called repeatedly for a hundredth of a second, and its shortest call counts. Programs
whose rates are compared take turns, so that other processes that use the processor slow down all of
these programs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from lowering.cpu.xla_options import BFLOAT16, BYTES, CPU
from lowering.kernels.precision import left_operand
from lowering.machine import Costs, MachineProfile

# Rates are rounded to powers of this number. If two rates are compared, their ratio is rounded to
# such a power. Rates that differ by less than a twelfth are then equal.
_STEP = 2**0.25

# The products ask for this precision, since the user's settings of jax may ask for another
# precision.
_PLAIN = lax.Precision.DEFAULT

_WIDTH = "xla_cpu_prefer_vector_width"  # the compiler option for the bits of a vector

_SECONDS_FOR_CALLS = 0.01  # the seconds in which one program is called repeatedly
_FEWEST_CALLS = 3  # A program is called at least this number of times.
# A measured loop has this number of iterations, so that the time to start the loop is small in
# comparison to the iterations.
_STEPS = 32


class _Trial(NamedTuple):
    """A function to measure, its arguments, and the units of work of one call.

    `options` are the compiler's options.
    """

    function: Callable[..., Any]
    arrays: Sequence[Array]
    work: float
    options: dict[str, str] = CPU


def measured(threads: int) -> MachineProfile:
    """Measure the rates of the host's first CPU device, which computes with `threads` threads.

    Raises JaxRuntimeError if jaxlib lacks a compiler option that the measurement uses.
    """
    products = _rates(
        _product(jnp.float32, CPU),
        _product(jnp.bfloat16, BFLOAT16),
        _product(jnp.int8, BYTES, sum_dtype=jnp.int32),
    )
    product, bfloat16, int8 = rounded(products)
    row, row_pairs = rounded(_rates(_row(parts=1), _row(parts=2)))
    loop, wide_loop = rounded(_rates(_loop(width="256"), _loop(width="512")))
    cached = _nearest(*_rates(_sum(items=1 << 18, steps=_STEPS)))  # 1 MB, which fits the caches
    memory = _nearest(*_rates(_sum(items=1 << 23, steps=2)))  # 32 MB
    starts_per_second = _nearest(*_rates(_starts()))
    start = _nearest(1 / starts_per_second)
    costs = Costs(product=product, cached=cached, memory=memory, start=start)
    return MachineProfile(
        threads=threads,
        bfloat16=bfloat16,
        int8=int8,
        row=row,
        row_pairs=row_pairs,
        loop=loop,
        wide_loop=wide_loop,
        costs=costs,
    )


def _rates(*trials: _Trial) -> list[float]:
    """Return the rate of each trial, in units of work per second.

    The rate is that of the trial's shortest call.
    """
    with ThreadPoolExecutor(len(trials)) as pool:
        compiled_trials = list(pool.map(_compiled, trials))
    shortest = [math.inf] * len(trials)  # the seconds of the shortest call of each trial
    rounds = 0
    end = time.perf_counter() + _SECONDS_FOR_CALLS * len(trials)
    # A round calls each trial once, so that the trials take turns.
    while rounds < _FEWEST_CALLS or time.perf_counter() < end:
        for index, call_trial in enumerate(compiled_trials):
            start = time.perf_counter()
            call_trial()
            seconds = time.perf_counter() - start
            shortest[index] = min(shortest[index], seconds)
        rounds += 1
    return [trial.work / seconds for trial, seconds in zip(trials, shortest, strict=True)]


def _compiled(trial: _Trial) -> Callable[[], Any]:
    """Compile a trial, call the trial once, and return a function that calls the trial again.

    Each call waits until the result is computed.
    """
    jitted = jax.jit(trial.function, compiler_options=trial.options)
    compiled = jitted.lower(*trial.arrays).compile()

    def call() -> Any:
        return jax.block_until_ready(compiled(*trial.arrays))

    call()
    return call


def _nearest(rate: float) -> float:
    """Return the power of `_STEP` that is nearest to a rate, with three digits."""
    exponent = round(math.log(rate, _STEP))
    return float(f"{_STEP**exponent:.3g}")


def rounded(rates: Sequence[float]) -> list[float]:
    """Round rates so that rates which are close to each other become equal.

    The first rate is rounded to a power of `_STEP`, and the ratio of each other rate to the first
    rate is rounded to a power of `_STEP`. For example, the ratios 1.08 and 1.7 become 1 and 1.68.
    """
    first, *other_rates = rates
    rounded_first = _nearest(first)
    results = [rounded_first]
    for rate in other_rates:
        exponent = round(math.log(rate / first, _STEP))
        results.append(float(f"{rounded_first * _STEP**exponent:.3g}"))
    return results


def _items(*shape: int, dtype: Any = jnp.float32) -> Array:
    """Return an array of random numbers, on the first CPU device.

    Floating-point numbers are between -1 and 1, and integers are between -100 and 100.
    """
    numbers = np.random.default_rng(0).uniform(-1, 1, shape)
    if jnp.issubdtype(dtype, jnp.integer):
        numbers = numbers * 100
    return _placed(numbers.astype(dtype))


def _placed(array: NDArray[np.generic]) -> Array:
    """Put an array on the first CPU device, where computations with the array use all threads."""
    first_device, *_ = jax.local_devices(backend="cpu")
    return jax.device_put(array, first_device)


def _product(dtype: Any, options: dict[str, str], sum_dtype: Any = jnp.float32) -> _Trial:
    """Return a benchmark of a product of matrices of the dtype `dtype`, with sums of `sum_dtype`.

    `options` are the compiler's options.
    """
    rows, depth, columns = 784, 512, 256

    def multiply(x: Array, y: Array) -> Array:
        left = left_operand(x, sum_dtype)
        numbers = ((1,), (0,)), ((), ())
        return lax.dot_general(left, y, numbers, _PLAIN, preferred_element_type=sum_dtype)

    arrays = _items(rows, depth, dtype=dtype), _items(depth, columns, dtype=dtype)
    return _Trial(multiply, arrays, rows * depth * columns, options)


def _row(parts: int) -> _Trial:
    """Return a benchmark of recurrent steps: products of one row and a matrix.

    Each step multiplies a row of 512 items by a 512x512 matrix, which is split into `parts`
    parts.
    """
    extent = 512

    def product(row: Array, matrices: Array) -> Array:
        if parts == 1:
            return lax.dot(row, matrices[0], precision=_PLAIN)
        rows = jnp.broadcast_to(row[None], (parts, 1, extent))
        numbers = ((2,), (1,)), ((0,), (0,))
        return lax.dot_general(rows, matrices, numbers, _PLAIN).reshape(1, extent)

    def run_steps(row: Array, matrices: Array) -> Array:
        def step(_: Array, row: Array) -> Array:
            return product(row, matrices) * 0.01  # the factor keeps the numbers from overflowing

        return lax.fori_loop(0, _STEPS, step, row)

    arrays = _items(1, extent), _items(parts, extent, extent // parts)
    return _Trial(run_steps, arrays, _STEPS * extent**2)


def _loop(width: str) -> _Trial:
    """Return a benchmark of sums of shifted arrays, as in a depthwise convolution.

    `width` is the number of bits of the vectors that XLA uses.
    """
    extent, channels = 14, 64

    def step(x: Array, filter: Array) -> Array:
        """Convolve x by a 3x3 filter with a group for each channel."""
        padded = jnp.pad(x, ((1, 1), (1, 1), (0, 0)))
        total = jnp.zeros_like(x)
        for row, column in np.ndindex(3, 3):
            shifted = padded[row:, column:][:extent, :extent]
            total = total + shifted * filter[row, column]
        return jnp.maximum(total, 0)

    def run_steps(x: Array, filter: Array) -> Array:
        return lax.fori_loop(0, _STEPS, lambda _, x: step(x, filter), x)

    arrays = _items(extent, extent, channels), _items(3, 3, 1, 1, channels)
    return _Trial(run_steps, arrays, _STEPS * extent**2 * channels, CPU | {_WIDTH: width})


def _sum(items: int, steps: int) -> _Trial:
    """Return a benchmark of reading and writing memory.

    The benchmark adds 1 to an array of `items` items, `steps` times.
    """

    def add_ones(x: Array) -> Array:
        return lax.fori_loop(0, steps, lambda _, x: x + 1, x)

    array = _placed(np.ones(items, np.float32))
    step_bytes = 2 * array.nbytes  # read and written
    return _Trial(add_ones, (array,), steps * step_bytes)


def _starts() -> _Trial:
    """Return a benchmark of starting operations: products that are too small to take long."""

    def products(x: Array, y: Array) -> Array:
        return lax.fori_loop(0, _STEPS, lambda _, x: lax.dot(x, y, precision=_PLAIN), x)

    return _Trial(products, (_items(8, 8), _items(8, 8)), _STEPS)
