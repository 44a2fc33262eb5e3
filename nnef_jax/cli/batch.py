"""The command `nnef-jax batch`, which runs a network on the files of a dataset, on all devices."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nnef_jax.cli import command_options as option
from nnef_jax.cli.commands import app
from nnef_jax.cli.terminal import print_result, report_error, status

if TYPE_CHECKING:
    from lowering.graph import TensorType
    from nnef_jax import Model, TensorSpec
    from nnef_jax.cli.batch_results import Parts
    from nnef_jax.cli.dataset import Item, ItemArrays
    from nnef_jax.reading.network import Network

_ITEMS_PER_DEVICE = 32  # By default a batch has 32 items for each device.
_MOST_PRINTED_FAILURES = 10  # At most 10 failures are printed.


@app.command()
@option.grouped
def batch(
    source: option.Source,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="The folder for the results, and for nothing else. Results in it of an earlier "
            "run are not computed again.",
            show_default=False,
        ),
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="IN...",
            help="Files, folders, and patterns such as 'scans/**/*.png' in quotes. Each file is an "
            "item: .npy, .dat, .png, .jpg, or a .npz with an array for each input.",
            show_default=False,
        ),
    ] = None,
    listed: Annotated[
        Path | None,
        typer.Option("--list", help="A text file with the names of further files, one a line."),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Items that are computed at once on all devices; by default the batch that the "
            f"document declares, or {_ITEMS_PER_DEVICE} on each device.",
        ),
    ] = None,
    part_size: Annotated[
        int | None,
        typer.Option(
            min=1, help="Items in a file of results; by default 64 MB of them, at most 1024."
        ),
    ] = None,
    shard: Annotated[
        str,
        typer.Option(
            metavar="I/N",
            help="Take every N-th item, starting at item I. I counts from 0: N machines take 0/N, "
            "1/N and so on. Results are in a subfolder of --out.",
            show_default=False,
        ),
    ] = "0/1",
    on_error: Annotated[
        Literal["skip", "stop"],
        typer.Option(
            help="skip: report files that cannot be read at the end; stop: stop at the first one."
        ),
    ] = "skip",
    pixels: option.Pixels = option.Pixels(),
    reading: option.Reading = option.Reading(),
    cache_dir: option.CacheDir = None,
    no_cache: option.NoCache = False,
) -> None:
    """Run a network on a dataset, one item in each file.

    If a run was interrupted, the next run with the same folder continues where it ended. --shape
    gives the shape of one item, such as x=1,3,224,224.
    """
    shard_index, shard_count = _shard(shard)
    # --shape gives shapes of one item. The network is first read with its own shapes, and then
    # loaded with shapes of batches.
    keywords = reading.keywords
    item_shapes = keywords.pop("input_shapes")
    cached = option.caching(cache_dir, no_cache)
    with status("finding files"):
        from nnef_jax.cli.dataset import ItemReader, find_items, reading_ahead

        items = find_items(inputs or (), listed, out)[shard_index::shard_count]
        pictures = pixels.options([item.file for item in items])
    network = replace(reading, shapes=None).read(source)
    specs = _item_specs(network, item_shapes)
    read_items = reading_ahead(ItemReader(specs, pictures))
    with cached as cache_folder:
        with status(f"compiling {network.graph.name}") as progress:
            import jax

            from nnef_jax.cli.batch_results import Parts

            devices = jax.local_devices()
            declared_size = _declared_size(network)
            default_size = _ITEMS_PER_DEVICE * len(devices)
            if declared_size > 1:
                default_size = declared_size
            size = batch_size or default_size
            # Each device gets equally many items, so the number of devices must divide the batch
            # size. For a batch of 12 items, 4 of 8 devices are used.
            devices = devices[: math.gcd(size, len(devices))]
            options = {
                "progress": progress,
                "cache_dir": cache_folder,
                "measure": bool(cache_folder),
            }
            model = _load(source, specs, size, declared_size, **keywords, **options)
            # A later run may continue this run only if the two runs have equal settings.
            settings = {
                "network": _digest(network),
                "--dialect": reading.dialect,
                "--shape": {spec.name: spec.shape for spec in specs},
                **{f"--{name}": value for name, value in asdict(pictures).items()},
            }
            folder_of_results = _folder(out, shard_index, shard_count)
            parts = Parts(folder_of_results, items, settings, model.outputs, part_size)
        stops = on_error == "stop"
        computed_count = _compute_pending(parts, model, devices, size, read_items, stop=stops)
    _report(parts, count=len(items), computed=computed_count, devices=len(devices))


def _compute_pending(
    parts: Parts,
    model: Model,
    devices: Sequence[Any],
    size: int,
    read_items: Callable[[Sequence[Item], int], Iterator[ItemArrays]],
    *,
    stop: bool,
) -> int:
    """Compute and write the pending parts. Return the number of computed items.

    Args:
        parts: the parts.
        model: the network, for batches of `size` items.
        devices: the devices, among which the items of a batch are divided.
        size: the number of items in a batch.
        read_items: a function that takes items, and the number of items to read ahead.
        stop: whether an error is raised for the first file that cannot be read.
    """
    from nnef_jax.cli.streaming import computing, groups_of, results_of

    pending_items: list[Item] = []
    for part in parts.pending:
        pending_items += parts.items_of(part)
    with status(f"running {model.graph.name}", counts=True) as progress:

        def report_progress(count: int) -> None:
            if progress:
                progress(count, len(pending_items))

        report_progress(0)
        # While a batch is computed, the items of the next two batches are read.
        reads = read_items(pending_items, 2 * size)
        groups = groups_of(reads, size, stop=stop)
        compute = computing(model, devices, size)
        results = results_of(compute, groups, report_progress)
        for part in parts.pending:
            results_of_part = list(islice(results, len(parts.items_of(part))))
            parts.write(part, results_of_part)
    return len(pending_items)


def _shard(text: str) -> tuple[int, int]:
    """Return the numbers I and N in the text I/N of the option --shard: (0, 4) for 0/4."""
    if not re.fullmatch("[0-9]{1,9}/[0-9]{1,9}", text):
        message = f"{text!r:.60} is not of the form I/N, such as 0/4"
        raise typer.BadParameter(message, param_hint="--shard")
    index, count = map(int, text.split("/"))
    if index >= count:
        message = f"{text}: the first number counts from 0, and must be less than the second"
        raise typer.BadParameter(message, param_hint="--shard")
    return index, count


def _folder(out: Path, shard_index: int, shard_count: int) -> Path:
    """Return the folder for the results of a shard.

    If there is only one shard, the folder is `out`. Otherwise `out` is created, and the result is a
    subfolder such as shard-0-of-4. The subfolder is not created.
    """
    if shard_count == 1:
        return out
    out.mkdir(exist_ok=True)
    return out / f"shard-{shard_index}-of-{shard_count}"


def _item_specs(network: Network, item_shapes: Mapping[str, Any]) -> tuple[TensorSpec, ...]:
    """Return the specs of the inputs for a single item. Their batch extent is 1.

    `item_shapes` maps names of inputs to the shapes in the option --shape. Raises InputError for a
    name that no input has, and for a network without inputs.
    """
    from nnef_jax import InputError
    from nnef_jax.wording.similar import did_you_mean, listed

    types = {value.name: value.type for value in network.graph.inputs}
    for name in item_shapes:
        if name not in types:
            raise InputError(
                f"--shape: the graph has no input '{name}', its inputs are {listed(types)}",
                hint=did_you_mean(name, types),
            )
    specs: list[TensorSpec] = []
    for name, input_type in types.items():
        specs.append(_item_spec(name, input_type, item_shapes.get(name)))
    if not specs:
        raise InputError(f"{network.graph.name} has no inputs")
    return tuple(specs)


def _item_spec(name: str, input_type: TensorType, item_shape: Any) -> TensorSpec:
    """Return the spec of an input for a single item. Its batch extent is 1.

    `input_type` is the type in the document. `item_shape` is the shape in the option --shape, or
    None if the option has no shape of the input. Raises InputError for an open shape, and for an
    input without an axis for the batch.
    """
    from lowering.extents import is_known, show
    from nnef_jax import InputError, TensorSpec

    declared_shape = input_type.shape
    if not declared_shape:
        raise InputError(f"input '{name}' is a single number, without an axis for a batch")
    shape = item_shape
    if shape is None:
        shape = (1, *declared_shape[1:])
    is_of_one_item = len(shape) == len(declared_shape) and shape[0] == 1
    if not is_of_one_item:
        raise InputError(
            f"--shape: {show(shape)} is no shape of an item of input '{name}', "
            f"whose shape is {show(declared_shape)}",
            hint="an item has the same number of axes, and its first extent is 1",
        )
    if not is_known(shape):
        # The hint has an example: for the shape [1,3,?,?] the example is 1,3,224,224.
        extents = show(shape)[1:-1].replace("?", "224")
        raise InputError(
            f"the shape of an item of input '{name}' has open extents: {show(shape)}",
            hint=f"give all extents: --shape {name}={extents}",
        )
    return TensorSpec(name, shape, input_type.dtype)


def _declared_size(network: Network) -> int:
    """Return the batch extent that the document declares, or 0.

    The result is 0 if the batch is open, or if the first extents of the inputs differ.
    """
    from lowering.extents import is_known

    batch_shapes = {value.type.shape[:1] for value in network.graph.inputs}
    if len(batch_shapes) != 1:
        return 0
    (batch_shape,) = batch_shapes  # This is a shape such as (8,), or () for inputs without axes.
    if batch_shape and is_known(batch_shape):
        return batch_shape[0]
    return 0


def _load(
    source: str, specs: Sequence[TensorSpec], size: int, declared_size: int, **options: Any
) -> Model:
    """Load a network for batches of `size` items.

    `declared_size` is the batch extent that the document declares, or 0. Raises InputError if the
    network cannot compute batches of `size` items.
    """
    from nnef_jax import InputError, NnefError, load
    from nnef_jax.errors import raise_all

    hint = ""
    declares_another_size = declared_size not in (0, size)
    if declares_another_size:
        advice = f"give --batch-size {declared_size}"
        hint = f"the document declares batches of {declared_size}: {advice}"
    shapes = {spec.name: (size, *spec.shape[1:]) for spec in specs}
    try:
        model = load(source, input_shapes=shapes, **options)
    except NnefError as error:
        message = f"the network cannot compute batches of {size} items"
        raise_all([*error.errors, InputError(message, hint=hint)])
        # `raise_all` always raises an error here. Type checkers do not know this.
        raise
    for spec in model.outputs:
        if spec.shape[:1] != (size,):
            raise InputError(f"output '{spec}' has no axis for a batch of {size} items", hint=hint)
    return model


def _digest(network: Network) -> str:
    """Return the sha256 of a network, computed from its graph and its data."""
    import hashlib

    from nnef_jax.execution.cache_key import digest_of_graph
    from nnef_jax.execution.checked_file import digests_of

    labels = sorted(network.data)
    data = digests_of([network.data[label] for label in labels])
    content = f"{digest_of_graph(network.graph)} {data} {labels}"
    return hashlib.sha256(content.encode("utf-8", "backslashreplace")).hexdigest()


def _report(parts: Parts, count: int, computed: int, devices: int) -> None:
    """Print the report of a batch; raise DataError if at least one file failed.

    Args:
        parts: the results.
        count: the number of all items.
        computed: the number of items that this run has computed.
        devices: the number of devices.
    """
    from nnef_jax import DataError

    path_of_failures = parts.write_failures()
    device_noun = "devices" if devices > 1 else "device"
    counts = f"{count} files: {computed} on {devices} {device_noun}"
    if computed < count:
        counts += f", {count - computed} by an earlier run"
    damaged = [f"{path}: damaged, its items were computed again" for path in parts.damaged]
    print_result(*damaged, counts, f"saved {parts.folder}")
    if not parts.failures:
        return
    for _file, reason in parts.failures[:_MOST_PRINTED_FAILURES]:
        report_error(*reason.split("\n"))
    message = f"{len(parts.failures)} of {count} files failed"
    raise DataError(message, hint=f"{path_of_failures} lists them, as --list reads them")
