"""`convert`: a network written anew in its format, compositional or flat."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from numpy.typing import ArrayLike

from nnef_jax.errors import UnsupportedError
from nnef_jax.formats.base import Expand
from nnef_jax.limits import Limits
from nnef_jax.options import require_flags, require_path
from nnef_jax.reading import Source, opened
from nnef_jax.storage import protected_files
from nnef_jax.storage.writer import write_archive


def convert(
    source: Source,
    path: str | os.PathLike[str] | None = None,
    *,
    flat: bool = False,
    expand: Expand = "auto",
    dialect: str = "auto",
    overwrite: bool = False,
    limits: Limits | None = None,
    weights: Source | None = None,
    values: Mapping[str, ArrayLike] | None = None,
    input_shapes: Mapping[str, Sequence[int | None] | int] | None = None,
    keep: bool = False,
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
        expand: "all" expands the compound operations of the standard to primitives too, and makes
            the document flat.
        dialect: how to read the document, as `load` takes it.
        overwrite: replace what is at the path, but not the source; otherwise FileExistsError.
        limits: bounds on what is read.
        weights: a file of weights that is elsewhere, as in `load`.
        values: inputs that are fixed, as in `load`.
        input_shapes: shapes of inputs, or open extents by name, as in `load`: what is written has
            these, and is flat.
        keep: write what NNEF does not have as custom operations, fragments without a body, which
            `load` reads again: of networks of OpenVINO and ONNX. Others are written as they are.

    Raises:
        NnefError: something is wrong with the network, or (UnsupportedError, which names all that
            is in the way) a flat document cannot describe it.
        TypeError, ValueError: an argument is of a wrong type or value.

    >>> print(nnef_jax.convert("provisional.tgz", "final.tgz"))
    """
    if path is not None:
        require_path("path", path)
    require_flags(flat=flat, overwrite=overwrite, keep=keep)
    stores = path is not None
    with (
        protected_files.spared(),
        opened(
            source,
            quantization="ignore",
            expand=expand,
            dialect=dialect,
            limits=limits,
            data=stores,
            weights=weights,
            values=values,
            input_shapes=input_shapes,
        ) as network,
    ):
        if network.is_guessed:
            raise UnsupportedError(
                "the text depends on an extent that is left open",
                hint="write the extents of the inputs into the document",
            )
        data = network.data if stores else None
        flat = flat or expand == "all" or bool(input_shapes)
        members = network.frontend.converted(network.graph, data, flat=flat, keep=keep)
        if path is not None:
            write_archive(path, members, overwrite=overwrite)
    text = next(iter(members.values()))
    assert isinstance(text, bytes)
    return text.decode()
