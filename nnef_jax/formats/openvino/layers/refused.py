"""Layers that no pure function of arrays can be, refused with what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lowering.errors import InvalidOperation
from nnef_jax.formats.openvino.layers import opsets
from nnef_jax.formats.openvino.site import Site


def _refused(why: str, hint: str) -> Callable[[Site], Any]:
    def meaning(site: Site) -> Any:
        raise InvalidOperation(why, hint)

    return meaning


opsets("RandomUniform", "Multinomial")(
    _refused(
        "it draws random numbers, and a model is a function of its inputs",
        "cut the network there, and give what jax.random draws as an input",
    )
)
opsets("StringTensorPack", "StringTensorUnpack")(
    _refused(
        "it holds text, and arrays hold numbers",
        "cut the network behind its tokenizer, and give tokens as an input",
    )
)
