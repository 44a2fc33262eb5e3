"""`save`: a network's text and tensors to an archive."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from lowering.extents import show
from lowering.location import Source
from nnef_jax.errors import DataError, NnefError, raise_all
from nnef_jax.network import Network
from nnef_jax.storage.labels import member_of
from nnef_jax.storage.writer import write_archive


def save(
    path: str | os.PathLike[str],
    text: str,
    params: Mapping[str, Any],
    *,
    quantization: str | None = None,
    overwrite: bool = False,
) -> None:
    """Write an NNEF archive: the text of its graph and a tensor file for each variable.

    Args:
        path: a folder to make, or an archive by its suffix (.tar, .tgz, .tar.gz, .tar.xz).
        text: the document, `graph.nnef`. It is checked before anything is written.
        params: arrays by variable label, of the declared shapes. bfloat16 is stored as float32.
        quantization: the text of `graph.quant`, if any; it is checked too.
        overwrite: replace what is at the path; otherwise FileExistsError.

    Raises:
        NnefError: the document is not valid, or the arrays are not those of its variables.

    Source: spec 5.1, container organisation.
    """
    from nnef_jax.loading import network_of_text

    write_network(path, network_of_text(text), params, quantization, overwrite=overwrite)


def write_network(
    path: str | os.PathLike[str],
    network: Network,
    arrays: Mapping[str, Any],
    quantization: str | None,
    *,
    overwrite: bool,
) -> None:
    """Write the text of a network with an array for each of its variables, as `save` does."""
    arrays = {label: array for label, array in arrays.items() if label not in network.unstored}
    _check_arrays(network, arrays)
    members: dict[str, Any] = {"graph.nnef": network.document.source.text.encode()}
    if quantization is not None:
        network.frontend.quantizers(Source("graph.quant", quantization), network.options)
        members["graph.quant"] = quantization.encode()
    for label, array in arrays.items():
        member = member_of(label)
        if member in members:
            raise DataError(
                f"variable '{label}' and another one would both be stored in '{member}'"
            )
        members[member] = np.asarray(array)
    write_archive(path, members, overwrite=overwrite)


def _check_arrays(network: Network, arrays: Mapping[str, Any]) -> None:
    """Raise for all the variables at once that lack an array, or have one that does not fit."""
    graph = network.graph
    variables = (*graph.parameters, *graph.states)
    shapes = {v.label: v.value.type.shape for v in variables if v.label not in network.unstored}
    errors: list[NnefError] = []
    for label in sorted(shapes.keys() | arrays.keys()):
        if label not in arrays:
            errors.append(DataError(f"there is no array for variable '{label}'"))
        elif label not in shapes:
            errors.append(DataError(f"the document has no variable '{label}'"))
        elif np.shape(arrays[label]) != shapes[label]:
            errors.append(
                DataError(
                    f"the array for '{label}' has shape {show(np.shape(arrays[label]))}, "
                    f"declared is {show(shapes[label])}"
                )
            )
    raise_all(errors)
