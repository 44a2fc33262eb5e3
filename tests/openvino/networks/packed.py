"""Networks with weights, or all tensors, in codes of 8 and 4 bits by NNCF."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tests.openvino.networks.attention import llama, vit
from tests.openvino.networks.base import codes, network, real
from tests.openvino.networks.convolutional import mobilenet, resnet


def packed(mode: str, **given: Any) -> Callable[[Any], Any]:
    """Return a function that packs the weights of a network in a mode of NNCF."""

    def changed(model: Any) -> Any:
        import nncf

        kind = nncf.CompressWeightsMode[mode]
        return nncf.compress_weights(model, mode=kind, **given)

    return changed


def rounded(*shape: int) -> Callable[[Any], Any]:
    """Return a function that rounds a network to 8 bits, calibrated by inputs of one seed."""

    def changed(model: Any) -> Any:
        import nncf

        rng = np.random.default_rng(3)
        data = [rng.uniform(-1, 1, shape).astype(np.float32) for _ in range(8)]
        return nncf.quantize(model, nncf.Dataset(data), subset_size=8)

    return changed


_TOKENS = (codes(1, 6, below=20), codes(1, 6, below=9))
_GROUPS = {"ratio": 1.0, "group_size": 16, "all_layers": True}
for _name, _change in {
    "weights_int8": packed("INT8_ASYM"),
    "weights_int8_symmetric": packed("INT8_SYM"),
    "weights_int4": packed("INT4_SYM", **_GROUPS),
    "weights_uint4": packed("INT4_ASYM", **_GROUPS),
    # The runtime folds what decompresses an embedding in 16 bits: here that has codes of 8 bits.
    "weights_nf4": packed("NF4", ratio=1.0, group_size=16),
}.items():
    given = {"changed": _change, "has_gradient": False}
    network(*_TOKENS, name=_name, **given)(partial(llama, 32))

for _name, _build in {"int8_resnet": resnet, "int8_mobilenet": mobilenet, "int8_vit": vit}.items():
    _shape = (2, 3, 16, 16) if _build is vit else (2, 3, 32, 32)
    given = {"changed": rounded(*_shape), "levels": 256, "has_gradient": False}
    network(real(*_shape), name=_name, **given)(_build)
