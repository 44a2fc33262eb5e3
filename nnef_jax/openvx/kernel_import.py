"""vxImportKernelFromURL: a network as one kernel, in real numbers (extension vx_khr_import_kernel).

What the fixed-point layers are not: OpenVX imports a network of NNEF in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any
from urllib.parse import unquote

from numpy.typing import ArrayLike

from nnef_jax.loading import load
from nnef_jax.model import Model
from nnef_jax.openvx.vx_errors import unsupported
from nnef_jax.options import require_path

# What the feature set vx_khr_nnef_import asks of every implementation, by operation (OpenVX 1.3).
_WINDOWS = "rank 4, border 'constant', dilation 1"
FEATURE_SET = {
    "external": "rank 4",
    "variable": "rank 4",
    "constant": "rank 4",
    "conv": f"{_WINDOWS}, kernel to 7, stride to 4, groups 0 or 1",
    "deconv": f"{_WINDOWS}, kernel to 7, stride to 4, groups 0 or 1",
    "max_pool": "size to 3, stride to 2",
    "avg_pool": "size to 3, stride to 2",
    "max_reduce": "axes [2,3]",
    "mean_reduce": "axes [2,3]",
    "relu": "yes",
    "sigmoid": "yes",
    "tanh": "yes",
    "add": "rank 2 or 4",
    "mul": "rank 2 or 4",
    "concat": "axis 1",
    "split": "axis 1",
    "squeeze": "axes [2,3]",
    "softmax": "axes [1]",
    "argmax_reduce": "axes [1]",
    "reshape": "shape [0,-1]",
    "linear": "yes",
    "multilinear_upsample": "factor [2,2], border 'constant', not aligned",
}

_TYPES = {"bool": "VX_TYPE_BOOL", "int32": "VX_TYPE_INT32", "float32": "VX_TYPE_FLOAT32"}


@dataclass(frozen=True, slots=True)
class KernelParameter:
    """A tensor that a kernel takes or returns: dims in NNEF's order, as the importer has them.

    `direction` is VX_INPUT or VX_OUTPUT, `dtype` a vx_type_e; None is an extent that is open.
    """

    name: str
    direction: str
    dims: tuple[int | None, ...]
    dtype: str


@dataclass(frozen=True)
class Kernel:
    """A network that was imported: called with its inputs, it returns what the model does."""

    model: Model

    @property
    def parameters(self) -> tuple[KernelParameter, ...]:
        """Return inputs, then outputs, each in the order of the document."""
        pairs = (("VX_INPUT", self.model.inputs), ("VX_OUTPUT", self.model.outputs))
        return tuple(
            KernelParameter(spec.name, direction, spec.shape, _TYPES.get(spec.dtype, spec.dtype))
            for direction, specs in pairs
            for spec in specs
        )

    def __call__(self, *inputs: ArrayLike) -> Any:
        """Run the network: verification is that of shapes and types, at the first call."""
        return self.model(*inputs)


def import_kernel_from_url(type: str, url: str | PathLike[str], **options: Any) -> Kernel:
    """Import a network as a kernel (vxImportKernelFromURL); `type` is 'nnef', `url` its path.

    The path may be a URL, `file:///...`. Options are those of `nnef_jax.load`: `rules=` has what
    OpenVX calls user kernels. Raises what `load` raises, and `VxError` for another type.
    """
    if type != "nnef":
        unsupported(f"kernels are imported from 'nnef', not from {type!r}")
    require_path("url", url)
    path = fspath(url)
    if path.startswith("file://"):
        path = unquote(path.removeprefix("file://"))
    return Kernel(load(path, **options))
