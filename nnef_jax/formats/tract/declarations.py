"""The declarations of the dialect's operations, by registry and by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from nnef_jax.formats.syntax import standard as library
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.parsing import read_package
from nnef_jax.formats.syntax.types import ArrayOf, Tensor, Type, has_tensor

# The registries. tract looks an operation up in the last registry first.
REGISTRIES = (
    "tract_nnef", "tract_core", "tract_resource", "tract_pulse", "tract_onnx", "tract_extra",
    "tract_transformers",
)  # fmt: skip

# Maps a second name of an operation to the name that its declaration has. Most second names are
# former names of the operation, in another registry.
ALIASES = {
    "tract_transformers_rms_norm": "tract_core_rms_norm",
    "tract_transformers_silu": "tract_core_silu",
    "tract_transformers_gelu_approx": "tract_core_gelu_approx",
    "tract_qwen35_causal_conv1d_update": "tract_transformers_causal_conv1d_update",
    "tract_qwen35_gdn_recurrent": "tract_transformers_gdn_recurrent",
    "tract_onnx_grid_sample": "tract_core_grid_sample",
    "tract_onnx_is_nan": "tract_core_is_nan",
    "tract_onnx_isinf": "tract_core_is_inf",
}

_HIDES_CACHE = (
    "it hides a cache that grows inside the network: export the cache as inputs and outputs instead"
)
_DRAWS_NUMBERS = "it draws random numbers: pass them to the network as an input instead"
# Operations that are always refused. The value is the reason, or a way around the operation.
REFUSED = {
    "tract_transformers_dyn_kv_cache": _HIDES_CACHE,
    "tract_transformers_quantized_dyn_kv_cache": _HIDES_CACHE,
    "tract_transformers_window_kv_sdpa": _HIDES_CACHE,
    "tract_transformers_quantized_kv_sdpa": _HIDES_CACHE,
    "tract_onnx_multinomial": _DRAWS_NUMBERS,
    "tract_onnx_random": _DRAWS_NUMBERS,
    "update": "make it an output, and load(..., state={INPUT: OUTPUT})",
}


@cache
def registry(name: str) -> Mapping[str, s.Fragment]:
    """Return a dict from names of operations in a registry to their declarations."""
    return read_package("nnef_jax.formats.tract", f"{name}.nnef")


@cache
def declarations() -> Mapping[str, s.Fragment]:
    """Return a dict from names of operations that a document may call to their declarations.

    The operations of NNEF 1.0 are among them.
    """
    fragments = dict(library.standard())
    for name in REGISTRIES:
        fragments |= registry(name)
    return fragments | {alias: fragments[name] for alias, name in ALIASES.items()}


def registry_of(name: str) -> str:
    """Return the name of the registry that declares an operation.

    If no registry declares the operation, return the registry that is a prefix of the name:
    "tract_core" for "tract_core_new". Return "" if there is no such registry.
    """
    for candidate in reversed(REGISTRIES):  # a later registry replaces declarations of earlier ones
        if name in registry(candidate):
            return candidate
    for candidate in REGISTRIES:
        if name.startswith(f"{candidate}_"):
            return candidate
    return ""


@cache
def operands(name: str) -> Mapping[str, str | None]:
    """Map the names of the operands of the operation `name` to the operands' item types.

    An item type is a name such as "scalar", or "?" for a generic type, or None if any type is
    allowed.
    """
    items: dict[str, str | None] = {}
    for parameter in declarations()[name].parameters:
        if has_tensor(parameter.type):
            items[parameter.name] = _item(parameter.type)
    return items


def _item(type: Type) -> str | None:
    """Return the item type of a tensor, or of the tensors in an array; see `operands`."""
    while isinstance(type, ArrayOf):
        type = type.item
    return type.item if isinstance(type, Tensor) else None
