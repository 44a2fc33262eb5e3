"""`save`: a network's text and tensors to an archive, and `Model.save`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from nnef_jax.errors import DataError, raise_all
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
        quantization: the text of `graph.quant`, if any.
        overwrite: replace what is at the path; otherwise FileExistsError.

    Raises:
        NnefError: the document is not valid, or the arrays are not those of its variables.

    Source: spec 5.1, container organisation.
    """
    from nnef_jax.load import network_of_text

    network = network_of_text(text)
    variables = {
        v.label: v.value.type.shape for v in (*network.graph.parameters, *network.graph.states)
    }
    errors = [
        DataError(f"there is no array for variable '{n}'") for n in variables if n not in params
    ]
    errors += [
        DataError(f"the document has no variable '{n}'") for n in params if n not in variables
    ]
    for label in variables.keys() & params.keys():
        shape = np.shape(params[label])
        if shape != variables[label]:
            errors.append(
                DataError(
                    f"the array for '{label}' has shape {shape}, declared is {variables[label]}"
                )
            )
    raise_all(errors)
    members: dict[str, Any] = {"graph.nnef": text.encode()}
    if quantization is not None:
        members["graph.quant"] = quantization.encode()
    members.update((member_of(label), np.asarray(array)) for label, array in params.items())
    write_archive(path, members, overwrite=overwrite)
