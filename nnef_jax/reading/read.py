"""Reads a network of any format from a path, bytes or a file, as a `Network`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Literal, TypedDict, TypeVar, get_args

import jax
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from lowering import Registry
from nnef_jax.errors import ArchiveError, InputError, NnefError
from nnef_jax.formats import FORMATS, format_of, graphs, sole_member
from nnef_jax.formats.base import NO_RULES, Expand, Frontend, Options, Progress
from nnef_jax.garbage import uncollected
from nnef_jax.limits import Limits, Meter, within_memory
from nnef_jax.options import (
    arrays_by_name,
    extents_by_name,
    require,
    require_choice,
    require_readable,
    shapes_by_name,
    word_pairs,
)
from nnef_jax.reading.foreign import as_readable
from nnef_jax.reading.network import Network
from nnef_jax.reading.safetensors_beside import require_labels, with_safetensors
from nnef_jax.storage.archive import GRAPH, Archive, archive_of_texts, open_archive

Quantization = Literal["apply", "ignore", "ste"]
Source = str | os.PathLike[str] | bytes | BinaryIO
_Result = TypeVar("_Result")
_ATTEMPTS = 100  # number of attempts to read a folder that changes while it is read
_REAL_DTYPES = ("float32", "bfloat16", "float16", "float64")


class DocumentOptions(TypedDict, total=False):
    """The keyword arguments of `load` that `convert` also accepts."""

    input_shapes: Mapping[str, Sequence[int | None] | int] | None
    values: Mapping[str, ArrayLike] | None
    expand: Expand
    dialect: str
    limits: Limits | None
    weights: Source | None


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """The options for reading a network.

    They are keyword arguments of `nnef_jax.load`, whose docstring explains them.
    """

    input_shapes: Mapping[str, Sequence[int | None] | int] | None = None
    values: Mapping[str, ArrayLike] | None = None
    dtype: DTypeLike = "float32"
    quantization: Quantization = "apply"
    expand: Expand = "auto"
    dialect: str = "auto"
    state: Mapping[str, str] | None = None
    rules: Registry | None = None
    limits: Limits | None = None
    progress: Progress | None = None
    weights: Source | None = None
    # whether unsupported operators are accepted (`summary` and `view` accept and show them)
    outline: bool = False

    def checked(self) -> Options:
        """Check the options, and return them in the form that front ends take.

        Raises TypeError for an option of a wrong type, and ValueError for a wrong value.
        """
        dtype: Any = self.dtype
        if isinstance(dtype, type | np.dtype):
            dtype = np.dtype(dtype).name
        require_choice("dtype", dtype, _REAL_DTYPES)
        require_choice("quantization", self.quantization, get_args(Quantization))
        require_choice("expand", self.expand, get_args(Expand))
        require_choice("dialect", self.dialect, ("auto", *FORMATS))
        shapes_and_extents = {} if self.input_shapes is None else self.input_shapes
        unchecked_shapes, extents = extents_by_name("input_shapes", shapes_and_extents)
        shapes = shapes_by_name("input_shapes", unchecked_shapes)
        unchecked_values = {} if self.values is None else self.values
        values = arrays_by_name("values", unchecked_values)
        require("rules", self.rules, Registry | None, "a nnef_jax.Registry")
        require("limits", self.limits, Limits | None, "a nnef_jax.Limits")
        require("progress", self.progress, Callable | None, "a function")
        if dtype == "float64" and not jax.config.read("jax_enable_x64"):
            raise ValueError(
                "dtype='float64' needs jax's x64 mode: jax.config.update('jax_enable_x64', True)"
            )
        return Options(
            rules=self.rules or NO_RULES,
            format=self.dialect,
            expand=self.expand,
            real=dtype,
            input_shapes=shapes,
            extents=extents,
            values=values,
            meter=Meter(self.limits),
            rounds=self.quantization != "ignore",
            progress=self.progress,
            outline=self.outline,
        )


def with_network(
    source: Source,
    reading: ReadingOptions,
    use: Callable[[Network], _Result],
    *,
    data: bool = True,
) -> _Result:
    """Read and check a network without touching a device, and return `use(network)`.

    `use` is called while the network's archive is open. If `data` is False, the network has no
    tensor data. If a folder changes while it is read, the folder is read again. After 100 attempts
    this function raises ArchiveError.
    """
    source, member = as_readable(source)
    weights = reading.weights
    require_readable("source", source)
    if weights is not None:
        require_readable("weights", weights)
    options = reading.checked()
    unchecked_state = {} if reading.state is None else reading.state
    state = word_pairs("state", unchecked_state, "output names by input name")
    source = _immutable_source(source)
    weights = _immutable_source(weights)
    is_read_once = hasattr(weights, "read")  # A file object cannot be read a second time.
    attempts = 1 if is_read_once else _ATTEMPTS
    last_error: Exception | None = None

    def sniff(start: bytes) -> str:
        """Return a member name for a source that is a single file. `start` has its first bytes."""
        return member or sole_member(start)

    with within_memory("the network"):
        for _ in range(attempts):
            options.meter.expanded = 0  # the memory of a failed attempt is free again
            try:
                archive = open_archive(
                    source, options.meter, graphs=graphs(), weights=weights, sniff=sniff
                )
            except FileNotFoundError as error:
                # If the file exists now, it was replaced while the folder was read.
                has_appeared = error.filename and os.path.exists(error.filename)
                if not has_appeared:
                    raise
                last_error = error
                continue
            with archive:
                try:
                    return use(network_of(archive, options, state, data=data))
                except NnefError as error:
                    if not archive.is_changed:
                        raise
                    last_error = error
    raise ArchiveError(f"the network changes while it is read: {last_error}") from last_error


def _immutable_source(source: Any) -> Any:
    """Copy a mutable source, so that later changes of the source do not change the network."""
    return bytes(source) if isinstance(source, bytearray | memoryview) else source


def read(source: Source, **options: Any) -> Network:
    """Read and check a network. `options` are keywords of `load`."""
    return with_network(source, ReadingOptions(**options), lambda network: network)


def network_of_text(text: str, options: Options | None = None) -> Network:
    """Return the network in the text of an NNEF document. Its variables have no data."""
    options = options or Options()
    archive = archive_of_texts({"graph.nnef": text}, options.meter)
    return network_of(archive, options, data=False)


def network_of(
    archive: Archive,
    options: Options,
    state: Mapping[str, str] | None = None,
    *,
    data: bool = True,
) -> Network:
    """Read and check the network in an archive.

    `state` is a dict from input names to output names, as in `load`. If `data` is False, the
    network has no tensor data.
    """
    format = format_of(archive, options.format)
    labels_in_weights = None
    if archive.weights is not None and not format.HAS_WEIGHTS_BESIDE:
        if archive.graph != GRAPH:
            raise InputError(
                "weights= does not go with this network, which has its own",
                hint="it is for NNEF, and for formats with a separate file of weights",
            )
        archive, labels_in_weights = with_safetensors(archive, options.meter)
    with uncollected():
        frontend = format.read(archive, options)
    pairs: dict[str, str] = {}
    if state is not None:
        for input_name, output_name in state.items():
            pairs[_resolved(frontend, input_name)] = _resolved(frontend, output_name)
    options = _resolved_options(frontend, options)
    network = Network.build(frontend, options, pairs, data=data)
    if labels_in_weights is not None:
        variables = (*network.graph.parameters, *network.graph.states)
        require_labels(labels_in_weights, [variable.label for variable in variables])
    return network


def _resolved(frontend: Frontend, name: str) -> str:
    """Return the name of an input or output. `name` is this name, or a synonym in the document."""
    return frontend.synonyms.get(name, name)


def _resolved_options(frontend: Frontend, options: Options) -> Options:
    """Return options in which synonyms of inputs are replaced by the names of the inputs.

    If `input_shapes` has an extent for a symbol, the extent is moved to `extents`.

    Raises TypeError if an integer is the shape of an input.
    """
    extents = dict(options.extents)
    for name, extent in extents.items():
        is_symbol = name in frontend.symbols
        if _resolved(frontend, name) in frontend.inputs and not is_symbol:
            raise TypeError(f"input_shapes of '{name}' must be a list or tuple, it is {extent}")
    shapes: dict[str, Sequence[int | None]] = {}
    for name_or_synonym, shape in options.input_shapes.items():
        name = _resolved(frontend, name_or_synonym)
        is_only_symbol = name in frontend.symbols and name not in frontend.inputs
        match shape:
            # On the command line, the extent of a symbol has the form of a shape with one axis.
            case (int(extent),) if is_only_symbol:
                extents[name] = extent
            case _:
                shapes[name] = shape
    values = {_resolved(frontend, name): array for name, array in options.values.items()}
    return replace(options, input_shapes=shapes, values=values, extents=extents)
