"""Imports a network as one kernel of OpenVX (vxImportKernelFromURL of vx_khr_import_kernel).

Unlike the layers of the extension, an imported kernel computes in float32.
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

# For each operation of the feature set vx_khr_nnef_import: the ranks and attributes with which
# every implementation must support the operation (OpenVX 1.3).
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

# The name of a vx_type_e for each dtype.
_TYPES = {"bool": "VX_TYPE_BOOL", "int32": "VX_TYPE_INT32", "float32": "VX_TYPE_FLOAT32"}


@dataclass(frozen=True, slots=True)
class KernelParameter:
    """An input or output of a kernel.

    Args:
        name: the name in the document.
        direction: VX_INPUT or VX_OUTPUT.
        dims: the extents in the order of NNEF; None for an open extent.
        dtype: the name of a vx_type_e.
    """

    name: str
    direction: str
    dims: tuple[int | None, ...]
    dtype: str


@dataclass(frozen=True)
class Kernel:
    """An imported network. A call takes the inputs of the network, and returns the outputs."""

    model: Model

    @property
    def parameters(self) -> tuple[KernelParameter, ...]:
        """Return the inputs and then the outputs, in the order of the document."""
        parameters: list[KernelParameter] = []
        pairs = (("VX_INPUT", self.model.inputs), ("VX_OUTPUT", self.model.outputs))
        for direction, specs in pairs:
            for spec in specs:
                dtype = _TYPES.get(spec.dtype, spec.dtype)
                parameters.append(KernelParameter(spec.name, direction, spec.shape, dtype))
        return tuple(parameters)

    def __call__(self, *inputs: ArrayLike) -> Any:
        """Run the network. A call with new shapes or types checks the inputs first."""
        return self.model(*inputs)


def import_kernel_from_url(type: str, url: str | PathLike[str], **options: Any) -> Kernel:
    """Import a network as a kernel (vxImportKernelFromURL).

    Args:
        type: 'nnef'.
        url: a path, or a URL `file:///...`.
        options: options of `nnef_jax.load`. The option `rules` corresponds to the user kernels of
            OpenVX.

    Raises the errors of `load`, and `VxError` for another type.
    """
    if type != "nnef":
        unsupported(f"kernels are imported from 'nnef', not from {type!r}")
    require_path("url", url)
    path = fspath(url)
    if path.startswith("file://"):
        path = unquote(path.removeprefix("file://"))
    return Kernel(load(path, **options))
