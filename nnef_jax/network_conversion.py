"""`convert`: a network written anew in its format, compositional or flat."""

from __future__ import annotations

import os
from typing import Unpack

from nnef_jax.errors import UnsupportedError
from nnef_jax.network import Network
from nnef_jax.options import require_flags, require_keywords, require_path
from nnef_jax.reading import DocumentOptions, ReadingOptions, Source, with_network
from nnef_jax.saving import require_readable
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
    """Return the text of a network as its format is written today; with a path, write all of it.

    A document of NNEF 1.0 final, or of tract's dialect, keeps its text unless it is to be flat. One
    of 1.0 provisional always becomes flat: its variables may stand in fragments, which 1.0 final
    does not allow. Tensor files get the layout of 1.0 final, with the same items. Codes whose
    algorithm stands in the header of their file get a line in graph.quant for it, or become real
    numbers where it would not do. A flat document of tract's dialect says casts and rounding by
    operations: its data are as the network computes with them, and it needs no graph.quant.

    Args:
        source: a network as `load` takes it. Without a path its tensor files are not read.
        path: a folder to make, or an archive by its suffix (.tar, .tgz, .tar.gz, .tar.xz).
        flat: expand the fragments of the document: what is left are operations of its format.
        keep: write what NNEF does not have as custom operations, fragments without a body, which
            `load` reads again: of networks of OpenVINO and ONNX. Others are written as they are.
        overwrite: replace what is at the path, but not the source; otherwise FileExistsError.
        reading: `input_shapes`, `values`, `expand`, `dialect`, `limits` and `weights`, as in
            `load`. With shapes, or with `expand="all"`, what is written is flat.

    Raises:
        NnefError: something is wrong with the network, or (UnsupportedError, which names all that
            is in the way) a flat document cannot describe it.
        TypeError, ValueError: an argument is of a wrong type or value.

    >>> print(nnef_jax.convert("provisional.tgz", "final.tgz"))
    """
    if path is not None:
        require_path("path", path)
    require_flags(flat=flat, overwrite=overwrite, keep=keep)
    require_keywords("convert", reading, DocumentOptions)
    options = ReadingOptions(quantization="ignore", **reading)
    stores = path is not None

    def written(network: Network) -> str:
        if network.is_guessed:
            raise UnsupportedError(
                "the text depends on an extent that is left open",
                hint=f"give it by {network.frontend.closing('convert')}, or --shape",
            )
        data = network.data if stores else None
        is_flat = flat or options.expand == "all" or bool(options.input_shapes)
        made = network.frontend.converted(network.graph, data, flat=is_flat, keep=keep)
        if path is not None:
            require_readable(network, made)
            write_members(path, made.members, overwrite=overwrite)
        text = next(iter(made.members.values()))
        assert isinstance(text, bytes)
        return text.decode()

    with protected_files.spared():
        return with_network(source, options, written, data=stores)
