"""Prints and saves the outputs of `nnef-jax run` as text, JSON or files."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lowering.extents import show
from nnef_jax import DataError, InputError, Model, write_tensor
from nnef_jax.cli.inputs import CallInputs
from nnef_jax.results import plain
from nnef_jax.storage import files
from nnef_jax.storage.labels import member_of
from nnef_jax.storage.numpyfile import write_npz
from nnef_jax.storage.writer import check_folder, write_folder
from nnef_jax.workings import bind, for_one_call

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class CallOutputs:
    """The outputs for one picture, or for one set of arrays.

    The title is the name of the picture, or "" for arrays.
    """

    title: str
    outputs: dict[str, Array]


@dataclass(frozen=True, slots=True)
class Top:
    """The options for showing the largest entries of each row.

    `count` is the number of entries to show. `labels` are the names of all entries of a row. If
    the user has passed no names, `labels` is empty.
    """

    count: int
    labels: tuple[str, ...] = ()


def run_calls(
    model: Model, calls: Sequence[CallInputs], function: Callable[..., Any] | None = None
) -> list[CallOutputs]:
    """Run the network for each call, and return the outputs of each picture or call.

    If `function` is not None, this function of the inputs runs instead of the network.
    """
    if function is None and len(calls) == 1:
        # This variant of the model takes the least time to be compiled and run once.
        model = for_one_call(model, bind(model, (), calls[0].arrays))
    results: list[CallOutputs] = []
    for call in calls:
        results += _run_call(model, call, function or model)
    return results


def _run_call(model: Model, call: CallInputs, function: Callable[..., Any]) -> list[CallOutputs]:
    """Run the network for one call, and return the outputs of each picture.

    If an output has no axis for the batch, the outputs of all pictures are one result.
    """
    inputs = [call.arrays[spec.name] for spec in model.inputs]
    results = function(*inputs)
    outputs = {name: np.asarray(array) for name, array in by_name(model, results).items()}
    picture_count = len(call.pictures)
    have_batch_axis = all(array.shape[:1] == (picture_count,) for array in outputs.values())
    can_be_divided = picture_count > 1 and have_batch_axis
    if not can_be_divided:
        return [CallOutputs(", ".join(call.pictures), outputs)]
    outputs_of_pictures: list[CallOutputs] = []
    for index, title in enumerate(call.pictures):
        batches_of_one = {name: array[index : index + 1] for name, array in outputs.items()}
        outputs_of_pictures.append(CallOutputs(title, batches_of_one))
    return outputs_of_pictures


def by_name(model: Model, results: Any) -> dict[str, Any]:
    """Return a dict from names of outputs to the results of a call."""
    # A network with one output returns an array. A network with several returns a tuple of arrays.
    arrays = [results] if len(model.outputs) == 1 else results
    names = [spec.name for spec in model.outputs]
    return dict(zip(names, arrays, strict=True))


def read_labels(path: Path) -> tuple[str, ...]:
    """Read names from a text file with a name in each line."""
    with files.open_regular(str(path), DataError) as file:
        data = file.read()
    try:
        return tuple(data.decode("utf-8-sig").rstrip().splitlines())
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: no UTF-8 text: {error.reason}") from None


def saved_or_shown(
    network: str,
    results: Sequence[CallOutputs],
    output: Path | None,
    top: Top | None,
    as_json: bool,
    overwrite: bool,
) -> list[str]:
    """Save results if there is a path, and return the lines to print.

    If `output` is None, the lines show the results. Otherwise the lines name the written files, and
    show the largest entries if `top` is not None. If `as_json`, the only line is a JSON object.
    `network` is the name of the network in this object.
    """
    saved_files = save_results(output, results, overwrite) if output else []
    shows_values = not saved_files
    if as_json:
        return [_as_json(network, results, top, values=shows_values, files=saved_files)]
    lines = _as_text(results, top, values=shows_values)
    return lines + [f"saved {file}" for file in saved_files]


def _as_text(results: Sequence[CallOutputs], top: Top | None, *, values: bool) -> list[str]:
    """Return lines that show results, with a block for each result.

    A block has the types of the outputs. If `top` is not None, the block also has the largest
    entries. If `top` is None and `values` is true, the block also has all values.
    """
    lines: list[str] = []
    for result in results:
        if lines:
            lines.append("")
        if len(results) > 1:
            lines.append(result.title)
        for name, array in result.outputs.items():
            lines.append(f"{name}: {array.dtype}{show(array.shape)}")
            if top:
                lines += _top_lines(array, top)
            elif values:
                text = np.array2string(array, max_line_width=100, precision=6, threshold=100)
                lines += text.split("\n")
    return lines


def _as_json(
    network: str,
    results: Sequence[CallOutputs],
    top: Top | None,
    *,
    values: bool,
    files: Sequence[str],
) -> str:
    """Return results as the text of one JSON object.

    JSON has no NaN and no infinity: the strings "NaN", "Infinity" and "-Infinity" stand for them.
    If `top` is not None, the object has the largest entries of each output. If `top` is None and
    `values` is true, it has all values. `files` are the names of the written files.
    """
    json_results: list[dict[str, Any]] = []
    for result in results:
        json_outputs: list[dict[str, Any]] = []
        for name, array in result.outputs.items():
            json_output: dict[str, Any] = {
                "name": name,
                "shape": list(array.shape),
                "dtype": str(array.dtype),
            }
            if top:
                json_output["top"] = [
                    {"row": row.position, "entries": plain(row.entries)}
                    for row in _top_rows(array, top)
                ]
            elif values:
                json_output["values"] = plain(array)
            json_outputs.append(json_output)
        json_results.append({"input": result.title or None, "outputs": json_outputs})
    document = {"network": network, "results": json_results, "files": list(files)}
    return json.dumps(document, allow_nan=False)


class _TopRow(NamedTuple):
    """The position of a row in an output, and the row's largest entries.

    An entry is a dict with the keys "index", "label" and "value".
    """

    position: tuple[int, ...]
    entries: list[dict[str, Any]]


def _top_rows(array: Array, top: Top) -> list[_TopRow]:
    """Return the largest entries of each row.

    Rows run along the last axis that is longer than 1: an array of shape (1, 1000, 1, 1) is one row
    of 1000 entries.
    """
    *outer_shape, row_length = _row_shape(array)
    rows = array.reshape(-1, row_length)
    labels = top.labels if len(top.labels) == row_length else ()
    # The negative sign sorts the largest entries first. argsort puts NaN last, and with "stable"
    # equal entries keep their order.
    order = np.argsort(-rows.astype(np.float64), axis=1, kind="stable")
    positions = np.ndindex(*outer_shape)
    top_rows: list[_TopRow] = []
    for position, row, indices in zip(positions, rows, order, strict=True):
        entries: list[dict[str, Any]] = []
        for index in indices[: top.count]:
            label = labels[index] if labels else None
            entries.append({"index": int(index), "label": label, "value": row[index].item()})
        top_rows.append(_TopRow(position, entries))
    return top_rows


def _row_shape(array: Array) -> tuple[int, ...]:
    """Return the shape of an array without axes of extent 1 at its end.

    (2, 1000, 1, 1) becomes (2, 1000). At least one axis remains.
    """
    shape = array.shape or (1,)
    while len(shape) > 1 and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def check_labels(top: Top, results: Sequence[CallOutputs]) -> None:
    """Raise InputError if no output has as many entries in a row as there are labels."""
    label_count = len(top.labels)
    # For each output, this is the number of entries in a row.
    row_lengths: dict[str, int] = {}
    for name, array in results[0].outputs.items():
        row_lengths[name] = _row_shape(array)[-1]
    if label_count and label_count not in row_lengths.values():
        rows = [f"rows of '{name}' have {length} entries" for name, length in row_lengths.items()]
        raise InputError(f"there are {label_count} labels, but {', '.join(rows)}")


def _top_lines(array: Array, top: Top) -> list[str]:
    """Return a line for each of the largest entries of an output.

    If there are several rows, a line with the position of the row precedes the row's lines.
    """
    lines: list[str] = []
    rows = _top_rows(array, top)
    for position, entries in rows:
        if len(rows) > 1:
            lines.append(f"  row {show(position)}")
        for entry in entries:
            label = entry["label"] or ""
            lines.append(f"{entry['index']:>8}  {entry['value']:<12.6g}  {label}".rstrip())
    return lines


def check_output(path: Path, names: Sequence[str], overwrite: bool) -> None:
    """Raise an error, before the network runs, if outputs cannot be saved to the path."""
    suffix = path.suffix.lower()
    holds_one_array = suffix in (".npy", ".dat")
    if holds_one_array and len(names) > 1:
        raise InputError(
            f"{path} holds one array, the graph has {len(names)} outputs: {', '.join(names)}",
            hint="save them as .npz or into a folder",
        )
    if holds_one_array or suffix == ".npz":
        files.check_target(str(path), overwrite=overwrite)
        return
    # A path with any other suffix is a folder.
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is no folder", hint="a file of outputs is a .npz, .npy or .dat")
    check_folder(str(path), [*map(member_of, names)], overwrite=overwrite)


def save_results(path: Path, results: Sequence[CallOutputs], overwrite: bool) -> list[str]:
    """Save outputs to a path, and return the names of the written files.

    The suffix of the path determines the format; a path without a known suffix is a folder of .dat
    files. Several results are joined as `_joined` describes.
    """
    arrays: dict[str, Array] = {}
    for name in results[0].outputs:
        arrays[name] = _joined([result.outputs[name] for result in results])
    # A .npy file or a .dat file has a single array, so there is only one output.
    first_array = next(iter(arrays.values()))
    match path.suffix.lower():
        case ".npz":
            save_npz(str(path), arrays, overwrite=overwrite)
        case ".npy":
            with files.replacing(str(path), overwrite=overwrite) as file:
                np.lib.format.write_array(file, first_array, allow_pickle=False)
        case ".dat":
            write_tensor(path, first_array, overwrite=overwrite)
        case _:
            members = {member_of(name): array for name, array in arrays.items()}
            write_folder(str(path), members, overwrite=overwrite)
            return [str(path / member) for member in members]
    return [str(path)]


def save_npz(path: str, arrays: Mapping[str, Array], *, overwrite: bool) -> None:
    """Write arrays as a .npz file, which appears only when it is complete."""
    with files.replacing(path, overwrite=overwrite) as file, zipfile.ZipFile(file, "w") as archive:
        write_npz(archive, arrays)


def _joined(arrays: Sequence[Array]) -> Array:
    """Return the arrays of several results as one array.

    If each array has a batch of 1, the arrays are concatenated along axis 0. Otherwise the arrays
    are stacked along a new axis. Raises InputError if the shapes differ.
    """
    if len(arrays) == 1:
        return arrays[0]
    shapes = sorted({array.shape for array in arrays})
    if len(shapes) > 1:
        raise InputError(
            f"outputs of the shapes {', '.join(map(show, shapes))} cannot be saved as one array",
            hint="run pictures of different sizes one by one",
        )
    has_batch_of_one = arrays[0].shape[:1] == (1,)
    return np.concatenate(arrays) if has_batch_of_one else np.stack(arrays)
