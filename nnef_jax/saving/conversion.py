"""The function `convert`, which rewrites a network in the current version of its format."""

from __future__ import annotations

import os
from typing import Unpack

from nnef_jax.errors import UnsupportedError
from nnef_jax.options import require_flags, require_keywords, require_path
from nnef_jax.reading.network import Network
from nnef_jax.reading.read import DocumentOptions, ReadingOptions, Source, with_network
from nnef_jax.saving.archives import require_readable
from nnef_jax.storage import protected_files
from nnef_jax.storage.writer import write_members


def convert(
    source: Source,
    path: str | os.PathLike[str] | None = None,
    *,
    flat: bool = False,
    keep: bool = False,
    overwrite: bool = False,
    **reading: Unpack[DocumentOptions],
) -> str:
    """Return the text of a network in its format's current version; write the archive to a path.

    A document in NNEF 1.0 final or in tract's dialect keeps its text, unless `flat` is set. A
    document in NNEF 1.0 provisional always becomes flat, since 1.0 final allows no variables in
    fragments. Tensor files are written in the layout of 1.0 final, with the same items. If the
    header of a tensor file names a quantisation algorithm, graph.quant gets a line for it. If
    graph.quant cannot express the algorithm, the stored codes are converted to floating-point
    numbers.

    A flat document in tract's dialect has no graph.quant: casts and rounding are operations of the
    document. Its tensor files have the numbers with which the network computes.

    Args:
        source: a network as in `load`. Its tensor files are read only if `path` is given.
        path: a folder to create, or an archive if it ends in .tar, .tgz, .tar.gz or .tar.xz.
        flat: whether the fragments of the document are expanded to operations of its format.
        keep: for OpenVINO and ONNX networks, whether operations that NNEF lacks are written as
            custom operations. These are fragments without a body, which `load` can read. The option
            has no effect on other networks.
        overwrite: whether a file or folder at the path is replaced; otherwise it raises
            FileExistsError. The source is never replaced.
        reading: `input_shapes`, `values`, `expand`, `dialect`, `limits` and `weights`, as in
            `load`. With `input_shapes`, or with `expand="all"`, the document is flat.

    Raises:
        NnefError: the network is wrong. If a flat document cannot describe it, the error is an
            UnsupportedError that names all obstacles.
        TypeError, ValueError: an argument is of a wrong type or value.

    >>> print(nnef_jax.convert("provisional.tgz", "final.tgz"))
    """
    if path is not None:
        require_path("path", path)
    require_flags(flat=flat, overwrite=overwrite, keep=keep)
    require_keywords("convert", reading, DocumentOptions.__annotations__)
    options = ReadingOptions(quantization="ignore", **reading)
    stores = path is not None

    def write(network: Network) -> str:
        """Write the archive if there is a path, and return the text of the document."""
        if network.is_guessed:
            raise UnsupportedError(
                "the text depends on an extent that is left open",
                hint=f"give it by {network.frontend.call_with_extents('convert')}, or --shape",
            )
        data = network.data if stores else None
        is_flat = flat or options.expand == "all" or bool(options.input_shapes)
        archive = network.frontend.converted(network.graph, data, flat=is_flat, keep=keep)
        if path is not None:
            require_readable(network, archive)
            write_members(path, archive.members, overwrite=overwrite)
        document, *_tensors = archive.members.values()
        assert isinstance(document, bytes)
        return document.decode()

    with protected_files.protecting_inputs():
        return with_network(source, options, write, data=stores)
