"""Writes a document and its tensors as an archive, after checking that `load` can read it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from lowering import Registry
from lowering.extents import show
from lowering.graph import Graph, TensorType, Value
from nnef_jax.errors import DataError, NnefError, UnsupportedError, raise_all
from nnef_jax.formats.base import NO_RULES, Options, Written
from nnef_jax.formats.syntax.declared_tensors import require_kind, require_range, without_member
from nnef_jax.limits import Meter
from nnef_jax.options import numpy_of, require, require_flags, require_path
from nnef_jax.reading.network import Network
from nnef_jax.reading.read import network_of, network_of_text
from nnef_jax.storage.archive import archive_of_members
from nnef_jax.storage.files import MAP_FROM
from nnef_jax.storage.labels import member_of
from nnef_jax.storage.writer import Member, parts_of, write_members


def write_archive(
    path: str | os.PathLike[str],
    text: str,
    params: Mapping[str, ArrayLike],
    *,
    quantization: str | None = None,
    rules: Registry | None = None,
    overwrite: bool = False,
) -> None:
    """Write an NNEF archive, which has the document and a tensor file for each variable.

    Args:
        path: a folder to create, or an archive if it ends in .tar, .tgz, .tar.gz or .tar.xz.
        text: the document, which is written as `graph.nnef`. It is checked before anything is
            written.
        params: maps variable labels to arrays of the declared shapes. bfloat16 becomes float32.
        quantization: the text of `graph.quant`, if there is one; it is checked too.
        rules: the user's rules for operations of the document, as in `load`.
        overwrite: whether an existing path is replaced; otherwise it raises FileExistsError.

    Raises:
        NnefError: the document is not valid, or the arrays do not fit its variables.
        TypeError, ValueError: an argument has a wrong type or value.

    Source: spec 5.1, container organisation.
    """
    require_path("path", path)
    require("text", text, str, "the text of a document")
    require("params", params, Mapping, "a dict of arrays by label")
    require("quantization", quantization, str | None, "the text of graph.quant")
    require("rules", rules, Registry | None, "a nnef_jax.Registry")
    require_flags(overwrite=overwrite)
    network = network_of_text(text, Options(rules or NO_RULES))
    archive = written(network, params, quantization)
    require_readable(network, archive)
    write_members(path, archive.members, overwrite=overwrite)


def write_network(
    path: str | os.PathLike[str],
    network: Network,
    arrays: Mapping[str, Any],
    quantization: str | None,
    *,
    overwrite: bool,
) -> None:
    """Write the archive of a network.

    If arrays are spread over several hosts, all hosts write them together.
    """
    # Arrays that are partly on other hosts cannot be read here. Arrays of zeros stand in for them,
    # and take no memory, because all items share the memory of one number.
    distributed: dict[str, jax.Array] = {}
    stand_ins: dict[str, NDArray[Any]] = {}
    for label, x in arrays.items():
        if isinstance(x, jax.Array) and not x.is_fully_addressable:
            distributed[label] = x
            stand_ins[label] = np.broadcast_to(np.zeros((), x.dtype), x.shape)
    archive = written(network, {**arrays, **stand_ins}, quantization)
    require_readable(network, archive)
    members = archive.members
    if not distributed:
        write_members(path, members, overwrite=overwrite)
        return
    from nnef_jax.storage.joint_writer import write_jointly

    # In the archive, a distributed array has the member name of its stand-in.
    names_by_id = {id(member): name for name, member in members.items()}
    distributed_members: dict[str, jax.Array] = {}
    for label, x in distributed.items():
        # The name is None if the stand-in was converted to another form.
        name = names_by_id.get(id(stand_ins[label]))
        if name is None or x.dtype == bool:
            hint = "gather it first: multihost_utils.process_allgather(params, tiled=True)"
            message = f"'{label}' is partly on other hosts, and cannot be stored as it is"
            raise UnsupportedError(message, hint=hint)
        distributed_members[name] = x
    write_jointly(path, members, distributed_members, overwrite=overwrite)


def require_readable(network: Network, written: Written) -> None:
    """Raise UnsupportedError or DataError if `load` would refuse the archive of a network.

    The archive is read, unless `written.loads_same_graph` is set. An archive that has the document
    of `network` unchanged is read with the input shapes of `network`.
    """
    if written.loads_same_graph:
        return
    members = written.members
    document_name, document = next(iter(members.items()))  # the graph is the first member
    meter = Meter(network.options.meter.limits)
    options = replace(network.options, meter=meter, values={}, progress=None)
    texts = [item.encode() for item in network.frontend.content() if isinstance(item, str)]
    is_unchanged = document in texts
    if not is_unchanged:
        # A flat document has the input shapes already.
        options = replace(options, format="auto", input_shapes={}, extents={})
    images = {name: partial(_image, member) for name, member in members.items()}
    archive = archive_of_members(images, document_name, meter)
    try:
        graph = network_of(archive, options, data=False).graph
        for variable in (*graph.parameters, *graph.states):
            name = member_of(variable.label)
            if name not in members:
                raise without_member(archive, name, variable.label)
            array = members[name]
            dtype = np.dtype(variable.value.type.dtype)
            if isinstance(array, np.ndarray) and array.dtype != dtype:
                require_range(array, dtype, name)
    except DataError:
        # The message names the wrong array already.
        raise
    except NnefError as error:
        message = f"load would refuse the saved network: {error.message}"
        raise UnsupportedError(
            message, span=error.span, calls=error.calls, hint=error.hint, siblings=error.siblings
        ) from error


def _image(member: Member) -> memoryview:
    """Return a stand-in for a member's bytes.

    In place of a megabyte or more, the stand-in has zeros that take no memory. A document can be
    read with the stand-ins, because its graph depends only on the values of small tensors, such as
    shapes and attributes.
    """
    header, *data = parts_of(member)
    data_size = sum(map(len, data))
    if data_size < MAP_FROM:
        return memoryview(b"".join((header, *data)))
    image = mmap.mmap(-1, len(header) + data_size)
    image[: len(header)] = bytes(header)
    return memoryview(image)


def written(network: Network, arrays: Mapping[str, Any], quantization: str | None) -> Written:
    """Return the members of an archive for a network whose variables have the values `arrays`.

    `quantization` is the text of graph.quant. If it is None, the text that was read is kept. Raises
    a DataError that lists each variable whose array is missing or does not fit the type of the
    variable.
    """
    # `load` would refuse an archive with arrays for these states: states that the option `state`
    # made from an input and an output, and states whose shape or initial value is open.
    refused = {*network.pairs, *network.open_states}
    types: dict[str, TensorType] = {}
    for variable in (*network.graph.parameters, *network.graph.states):
        if variable.label not in refused:
            types[variable.label] = variable.value.type
    errors: list[NnefError] = []
    unknown = arrays.keys() - types.keys() - refused
    for label in sorted(map(str, unknown)):
        errors.append(DataError(f"params: the document has no variable '{label}'"))
    stored: dict[str, NDArray[Any]] = {}
    for label, type in sorted(types.items()):
        try:
            stored[label] = _checked_array(label, type, arrays)
        except DataError as error:
            errors.append(error)
    raise_all(errors)
    frontend = network.frontend
    # The option `values` fixes some inputs. They are still inputs in the original document, and
    # they are constants in a flat document.
    is_flat = frontend.is_saved_flat or network.options.values
    if not is_flat:
        return frontend.members(stored, quantization)
    raise_all(frontend.unsavable())
    if network.is_guessed:
        raise UnsupportedError(
            "the graph depends on open extents of inputs, which NNEF cannot express",
            hint=f"close them by {frontend.call_with_extents()}",
        )
    options = replace(network.options, meter=Meter(network.options.meter.limits))

    def entire(graph: Graph) -> tuple[Graph, Mapping[Value, Value]]:
        """Return the entire graph, and an empty dict, since inputs replace no values."""
        return graph, {}

    return frontend.flat_members(network.unpaired, options, entire, stored, quantization)


def _checked_array(label: str, type: TensorType, arrays: Mapping[str, Any]) -> NDArray[Any]:
    """Return the array with a label, after checking that it fits the type of the variable.

    Raises DataError if the array is missing or does not fit.
    """
    if label not in arrays:
        raise DataError(
            f"params: there is no array for variable '{label}'",
            hint="after load(..., unused=True) model.params has all variables; model.save "
            "stores unused variables unchanged",
        )
    shown_name = f"params: the array for '{label}'"
    array = numpy_of(arrays[label], DataError, f"{shown_name} has no values to store")
    if array.shape != type.shape:
        shapes = f"has shape {show(array.shape)}, the document declares {show(type.shape)}"
        raise DataError(f"{shown_name} {shapes}")
    dtype = np.dtype(type.dtype)
    require_kind(array, dtype, shown_name)
    require_range(array, dtype, shown_name)
    return array
