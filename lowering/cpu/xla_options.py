"""Choose XLA's options for a program on a CPU."""

from __future__ import annotations

import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from lowering import jaxprs
from lowering.contexts import is_enabled
from lowering.cpu.widening import computes_narrow, is_of_bfloat16
from lowering.jaxpr_types import ClosedJaxpr, Equation
from lowering.jaxprs import CONVOLUTION, PRODUCT, primitive
from lowering.machine import profile
from lowering.program import Program

# With this option Eigen computes products and convolutions, instead of YNNPACK, which is XLA's
# other library for them. Single products of 32 to 800 rows are faster by YNNPACK: 196x384x1536
# items reach 342 GFLOP/s by YNNPACK and 270 GFLOP/s by Eigen. But ten networks drawn at random,
# with batches of 1 and 8, take 0.91 to 1.15 times as long with products by YNNPACK as with products
# by Eigen, and 1.04 times as long in the mean.
CPU = {"xla_cpu_experimental_ynn_fusion_type": ""}

# With this option YNNPACK computes products. YNNPACK uses the processor's units for bfloat16, while
# Eigen computes products of bfloat16 in float32. A product of 6272x512x128 items takes 0.52 ms by
# YNNPACK, and 5.4 ms by Eigen. In float32 it takes 3 ms by either library. Without any option
# YNNPACK computes everything that it supports. A transformer takes as long without any option as
# with this option, but ResNet-50 takes 177 ms without any option, and 159 ms with this option.
BFLOAT16 = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}

# XLA disables the passes that this option names, which are separated by commas.
_DISABLED_PASSES = "xla_disable_hlo_passes"

# With this pass, XLA writes into an array of bfloat16 by widening the array and rounding all its
# items again, which takes 1 ms for 12 heads of 1024 keys of 64 items. Without the pass, XLA writes
# the keys of a token in place, in 2 us, but cannot compute in 16 bits. Therefore the pass is
# disabled only for functions that have no operation in 16 bits after the pass `widening`, and never
# for functions that users write.
_FLOAT_NORMALISATION = "float-normalization-bf16"

# With this pass, XLA compiles a loop into one kernel, which one thread runs. Since jax 0.12 the
# pass takes all loops whose products are of a matrix and a vector. Small loops need the pass: an
# LSTM of 64 units takes 1.26 times as long without it, and a step of a Llama of 12 layers of width
# 128 takes 1.62 times as long. Large loops lose by the pass: on two threads, without it, an LSTM of
# 512 units takes 0.70 times as long, and a step of a Llama of 12 layers of width 768 takes 0.80
# times as long and compiles in 2 s instead of 19 s. LSTMs of 256 units and Llamas of 6 layers of
# width 384 take as long either way.
_LOOP_KERNELS = "small-while-loop-hoisting"

# `_LOOP_KERNELS` is disabled if a product of a matrix and a vector has at least this many
# multiply-adds. In an LSTM of 512 units such a product has 1 << 20. Of a batch of products, one
# counts: without the pass, products of 192 matrices of 64x64 items, as linear attention has, take
# 3.8 times as long. Large elementwise operations do not count: without the pass, tanh of 1 << 18
# items takes 0.5 times as long, but linear attention with a state of as many items takes 4 times as
# long.
_FEWEST_FOR_THREADS = 1 << 19

# With this option YNNPACK computes products and convolutions of 8 bits, which Eigen computes by
# plain loops. A product of 6272x512x128 items takes 0.4 ms by YNNPACK and 19.5 ms by Eigen. 3x3
# windows on 64 channels at 56x56 positions take 0.23 ms by YNNPACK in 8 bits, and 1.1 ms by Eigen
# in float32.
BYTES = {
    "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,"
    "LIBRARY_FUSION_TYPE_INDIVIDUAL_CONVOLUTION"
}

# With this option loops use vectors of 512 bits instead of LLVM's 256 bits. The option is chosen if
# the wider vectors are no slower. Compared with vectors of 256 bits, EfficientNet-B0 takes 0.94
# (batch 1) and 0.91 (batch 8) of the time, MobileNetV2 takes 0.95 (batch 1) and 0.94 (batch 8),
# ConvNeXt-T takes 0.94, an LSTM takes 0.97, an encoder takes 0.98, and training steps take 0.94 to
# 1.00. Processors without vectors of 512 bits use their widest vectors.
_WIDTH = {"xla_cpu_prefer_vector_width": "512"}

# With this option XLA runs operations in the order that needs the least memory. Without the option
# it runs as many operations as possible at once. With the option an array is gathered from devices
# just before it is read, and without the option it is gathered at the start of the call.
_LEAST_MEMORY = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}

# A function with fewer multiply-adds than this uses YNNPACK, which starts faster: 100 products of 8
# rows by 8x8 items take 0.20 ms by YNNPACK, and 0.30 ms by Eigen.
_FEWEST_MULTIPLY_ADDS = 1 << 20

_PRODUCTS = (PRODUCT, CONVOLUTION)
_BYTE_DTYPES = {np.dtype(np.int8), np.dtype(np.uint8)}


def candidates() -> list[dict[str, str]]:
    """Return the sets of compiler options that may be the fastest for a network."""
    if not _knows(CPU | _WIDTH):
        return [{}]
    return list(map(_widest, (CPU, BFLOAT16, BYTES, {})))


def compiler_options(
    multiply_adds: int,
    *,
    bfloat16: bool = False,
    in_bytes: bool = False,
    in_place: bool = False,
    loop_kernels: bool = True,
) -> dict[str, str]:
    """Return `jax.jit`'s options for a function, or {} if jaxlib does not have these options.

    Args:
        multiply_adds: the number of multiply-adds in the function's products and convolutions.
        bfloat16: whether most products are of bfloat16.
        in_bytes: whether some products are of 8 bits.
        in_place: whether the function writes into arrays of bfloat16, and computes nothing in 16
            bits.
        loop_kernels: whether XLA may compile a loop into one kernel.
    """
    if not is_enabled("eigen") or not _knows(CPU | _WIDTH):
        return {}
    options = _library(multiply_adds, bfloat16, in_bytes)
    disabled: list[str] = []
    if in_place:
        disabled.append(_FLOAT_NORMALISATION)
    if not loop_kernels:
        disabled.append(_LOOP_KERNELS)
    if disabled:
        options = options | {_DISABLED_PASSES: ",".join(disabled)}
    return _widest(options)


def _library(multiply_adds: int, bfloat16: bool, in_bytes: bool) -> dict[str, str]:
    """Return the option that chooses XLA's library for products.

    The arguments are those of `compiler_options`.
    """
    if in_bytes:
        return BYTES
    if bfloat16:
        # Eigen reads widened weights. With the schedule for the least memory each weight is widened
        # just before it is read, and without the schedule all weights are widened at the start.
        return BFLOAT16 if profile().multiplies_bfloat16 else CPU | least_memory()
    # Without an option XLA uses YNNPACK, which starts faster.
    return {} if multiply_adds < _FEWEST_MULTIPLY_ADDS else CPU


def of_program(program: Program, call: ClosedJaxpr, is_alone: bool) -> dict[str, str]:
    """Return `jax.jit`'s options for `call`, which is `program` after the passes.

    `is_alone` tells whether the call is compiled on its own. If `is_alone` is false, the call is
    compiled with other functions, which may compute in 16 bits.
    """
    # These numbers count the multiply-adds of the program as it was before the passes.
    narrow_work = 0
    total_work = 0
    largest_row_work = 0
    for equation, times in jaxprs.repeated(program.closed.jaxpr):
        if primitive(equation) not in _PRODUCTS:
            continue
        once = _multiply_adds(equation)
        multiply_adds = times * once
        total_work += multiply_adds
        if once <= max(v.aval.size for v in equation.invars):  # of a matrix and a vector
            largest_row_work = max(largest_row_work, once // _batches(equation))
        operand_dtypes = [v.aval.dtype for v in equation.invars]
        if jnp.bfloat16 in operand_dtypes or is_of_bfloat16(equation):
            narrow_work += multiply_adds
    is_mostly_narrow = 2 * narrow_work > total_work
    # The following facts are read from the call, since passes have changed dtypes.
    in_bytes = False
    writes_bfloat16 = False
    for equation in jaxprs.innermost(call.jaxpr):
        name = primitive(equation)
        if name in _PRODUCTS and {v.aval.dtype for v in equation.invars} <= _BYTE_DTYPES:
            in_bytes = True
        elif name.startswith(("scatter", "dynamic_update")):
            (result,) = equation.outvars
            writes_bfloat16 = writes_bfloat16 or result.aval.dtype == jnp.bfloat16
    may_write_in_place = is_alone and is_mostly_narrow and writes_bfloat16
    in_place = may_write_in_place and not computes_narrow(call.jaxpr)
    return compiler_options(
        total_work,
        bfloat16=is_mostly_narrow,
        in_bytes=in_bytes,
        in_place=in_place,
        loop_kernels=largest_row_work < _FEWEST_FOR_THREADS,
    )


def _multiply_adds(equation: Equation) -> int:
    """Return the number of multiply-adds of a product or convolution."""
    left, right = (v.aval for v in equation.invars)
    (result,) = equation.outvars
    numbers = equation.params["dimension_numbers"]
    # The depth is the number of multiply-adds for each item of the result.
    if primitive(equation) == CONVOLUTION:
        output_axis, *_ = numbers.rhs_spec
        depth = math.prod(right.shape) // max(right.shape[output_axis], 1)
    else:
        (left_sums, _), _ = numbers
        depth = math.prod(left.shape[axis] for axis in left_sums)
    return math.prod(result.aval.shape) * depth


def _batches(equation: Equation) -> int:
    """Return the number of matrices in each operand of a product, or 1 for a convolution."""
    if primitive(equation) == CONVOLUTION:
        return 1
    _, (batch_axes, _) = equation.params["dimension_numbers"]
    shape = equation.invars[0].aval.shape
    return max(math.prod(shape[axis] for axis in batch_axes), 1)


def least_memory() -> dict[str, str]:
    """Return `jax.jit`'s options for the schedule that needs the least memory.

    Return {} if jaxlib does not have this schedule.
    """
    return _LEAST_MEMORY if _knows(_LEAST_MEMORY) else {}


def _widest(options: dict[str, str]) -> dict[str, str]:
    """Add the option for vectors of 512 bits, unless wide vectors slow the processor down."""
    return options | _WIDTH if profile().keeps_wide_vectors else options


def _knows(options: dict[str, str]) -> bool:
    """Tell whether the installed jaxlib accepts compiler options."""
    return _compiles(*options.items())


@cache
def _compiles(*options: tuple[str, str]) -> bool:
    """Tell whether a function compiles with compiler options, which are pairs of name and value."""
    try:
        jax.jit(lambda: 0, compiler_options=dict(options)).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True
