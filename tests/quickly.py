"""How tests have XLA compile what does not depend on the code that is generated.

Small programs take a quarter of the time. What XLA itself does to them is as ever: fusions,
layouts, partitions and collectives.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import pytest
from jax._src import compiler

# Options of `jax.jit`. Programs are small: what LLVM would gain when they run, it takes tenfold
# when they are compiled. Loops are written as LLVM's own code, without MLIR and its passes before
# it, and by one thread.
UNOPTIMISED: dict[str, Any] = {
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}


@contextmanager
def unoptimised() -> Iterator[None]:
    """Compile everything by these options, but for those that are asked for.

    Where a later jax has not the function that is replaced here, LLVM's part alone is left out.
    """
    original: Any = getattr(compiler, "get_compile_options", None)

    def get_compile_options(*args: Any, **others: Any) -> Any:
        asked = others.pop("env_options_overrides", None) or {}
        return original(*args, **others, env_options_overrides={**UNOPTIMISED, **asked})

    jax.config.update("jax_disable_most_optimizations", True)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiler, "get_compile_options", get_compile_options, raising=False)
            yield
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
