"""Options by which tests compile quickly what does not depend on the generated code.

Small programs take a quarter of the time. What XLA itself does to them is as ever: fusions,
layouts, partitions and collectives.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from typing import Any

import jax
import pytest
from jax._src import compiler
from jax._src.interpreters import mlir
from jaxlib.mlir import ir

# Options of `jax.jit`. Programs are small: what LLVM would gain when they run, it takes tenfold
# when they are compiled. Loops are written as LLVM's own code, without MLIR and its passes before
# it (an option until jaxlib 0.11), and by one thread.
_UNOPTIMISED: dict[str, Any] = {
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}

# Programs that are lowered in one context of MLIR. A context keeps their constants; to make one
# takes longer than to lower a small program.
_LOWERED = 50

# Executables that are kept for the same text. Each maps some ten pages of memory, of which Linux
# allows a process 65,530.
_EXECUTABLES = 500


_compile_options: Any = getattr(compiler, "get_compile_options", None)
_compile: Any = getattr(compiler, "backend_compile_and_load", None)


@cache
def unoptimised_options() -> dict[str, Any]:
    """Return the options that tests compile by: those that this jaxlib has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "get_compile_options", _compile_options, raising=False)
        lowered = jax.jit(lambda: 0).lower()
        return {x: _UNOPTIMISED[x] for x in _UNOPTIMISED if _compiles(lowered, x)}


def _compiles(lowered: Any, option: str) -> bool:
    try:
        lowered.compile({option: _UNOPTIMISED[option]})
    except jax.errors.JaxRuntimeError:
        return False
    return True


@contextmanager
def optimised() -> Iterator[None]:
    """Compile as for users within `unoptimised`: long computations are faster overall."""
    jax.config.update("jax_disable_most_optimizations", False)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiler, "get_compile_options", _compile_options, raising=False)
            yield
    finally:
        jax.config.update("jax_disable_most_optimizations", True)


@contextmanager
def unoptimised() -> Iterator[None]:
    """Compile everything by these options, except for those that a program sets itself.

    A program whose text was compiled before, within the same call, is not compiled again: a tenth
    of the time. Texts have the names of operations and no lines of the source.
    Where a later jax has not the functions that are replaced here, LLVM's part alone is left out.
    """
    make_context: Any = getattr(mlir, "make_ir_context", None)
    lowered, context = count(), None
    executables: dict[Any, Any] = {}

    def get_compile_options(*args: Any, **others: Any) -> Any:
        asked = unoptimised_options() | (others.pop("env_options_overrides", None) or {})
        return _compile_options(*args, **others, env_options_overrides=asked)

    def make_ir_context() -> Any:
        nonlocal context
        if ir.Context.current is not None:  # while a program is lowered: it would be written into
            return make_context()
        if next(lowered) % _LOWERED == 0 or context is None:  # another thread may make the first
            context = make_context()
        return context

    def compiled(backend: Any, module: Any, devices: Any, options: Any, callbacks: Any) -> Any:
        if callbacks:
            return _compile(backend, module, devices, options, callbacks)
        text = module.operation.get_asm(enable_debug_info=True)
        key = backend, text, repr(devices), options.SerializeAsString()
        if key not in executables:
            if len(executables) >= _EXECUTABLES:
                executables.clear()
            executables[key] = _compile(backend, module, devices, options, callbacks)
        return executables[key]

    jax.config.update("jax_disable_most_optimizations", True)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiler, "get_compile_options", get_compile_options, raising=False)
            patch.setattr(compiler, "backend_compile_and_load", compiled, raising=False)
            patch.setattr(mlir, "make_ir_context", make_ir_context, raising=False)
            yield
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
