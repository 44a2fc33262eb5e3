"""The command `nnef-jax batch`, which runs a network on the files of a dataset, on all devices."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nnef_jax.cli import command_options as option
from nnef_jax.cli.commands import app
from nnef_jax.cli.terminal import print_result, report_error, status

if TYPE_CHECKING:
    from nnef_jax import Model, TensorSpec
    from nnef_jax.cli.batch_results import Parts
    from nnef_jax.reading.network import Network

_PER_DEVICE = 32  # number of items for each device
_SHOWN = 10  # number of failures that are printed


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
            f"document declares, or {_PER_DEVICE} on each device.",
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
    keywords = reading.keywords
    shapes = keywords.pop("input_shapes")
    cached = option.caching(cache_dir, no_cache)
    with status("finding files"):
        from nnef_jax.cli.dataset import ItemReader, find_items, reading_ahead

        items = find_items(inputs or (), listed, out)[shard_index::shard_count]
        pictures = pixels.options([item.file for item in items])
    network = replace(reading, shapes=None).read(source)
    specs = _item_specs(network, shapes)
    read = reading_ahead(ItemReader(specs, pictures))
    with cached as folder:
        with status(f"compiling {network.graph.name}") as progress:
            import jax

            from nnef_jax.cli.batch_results import Parts
            from nnef_jax.cli.streaming import computing, groups_of, results_of

            devices = jax.local_devices()
            declared = _declared(network)
            default_size = declared if declared > 1 else _PER_DEVICE * len(devices)
            size = batch_size or default_size
            devices = devices[: math.gcd(size, len(devices))]
            options = {"progress": progress, "cache_dir": folder, "measure": bool(folder)}
            model = _load(source, specs, size, declared, **keywords, **options)
            settings = {
                "network": _digest(network),
                "--dialect": reading.dialect,
                "--shape": {spec.name: spec.shape for spec in specs},
                **{f"--{name}": value for name, value in asdict(pictures).items()},
            }
            folder_of_results = _folder(out, shard_index, shard_count)
            parts = Parts(folder_of_results, items, settings, model.outputs, part_size)
        pending_items = [item for part in parts.pending for item in parts.items_of(part)]
        with status(f"running {network.graph.name}", counts=True) as progress:

            def done(count: int) -> None:
                if progress:
                    progress(count, len(pending_items))

            done(0)
            groups = groups_of(read(pending_items, 2 * size), size, stop=on_error == "stop")
            compute = computing(model, devices, size)
            results = results_of(compute, groups, done)
            for part in parts.pending:
                parts.write(part, list(islice(results, len(parts.items_of(part)))))
    _report(parts, len(items), len(pending_items), len(devices))


def _shard(text: str) -> tuple[int, int]:
    """Return the numbers I and N of the text I/N of the option --shard."""
    if not re.fullmatch("[0-9]{1,9}/[0-9]{1,9}", text):
        message = f"{text!r:.60} is not of the form I/N, such as 0/4"
        raise typer.BadParameter(message, param_hint="--shard")
    first, count = map(int, text.split("/"))
    if first >= count:
        message = f"{text}: the first number counts from 0, and must be less than the second"
        raise typer.BadParameter(message, param_hint="--shard")
    return first, count


def _folder(out: Path, first: int, count: int) -> Path:
    """Return the folder for the results of shard `first` of `count` shards.

    It is `out` if there is one shard. Otherwise it is a subfolder such as shard-0-of-4, and `out`
    is created.
    """
    if count == 1:
        return out
    out.mkdir(exist_ok=True)
    return out / f"shard-{first}-of-{count}"


def _item_specs(network: Network, item_shapes: Mapping[str, Any]) -> tuple[TensorSpec, ...]:
    """Return the inputs of the network for a single item, whose batch extent is 1.

    `item_shapes` are the shapes of items that the user gives. Raises InputError for an open shape,
    and for an input without an axis for the batch.
    """
    from lowering.extents import is_known, show
    from nnef_jax import InputError, TensorSpec
    from nnef_jax.wording.similar import did_you_mean, listed

    inputs = {value.name: value.type for value in network.graph.inputs}
    for name in item_shapes:
        if name not in inputs:
            raise InputError(
                f"--shape: the graph has no input '{name}', its inputs are {listed(inputs)}",
                hint=did_you_mean(name, inputs),
            )
    specs: list[TensorSpec] = []
    for name, type in inputs.items():
        if not type.shape:
            raise InputError(f"input '{name}' is a single number, without an axis for a batch")
        shape = item_shapes.get(name, (1, *type.shape[1:]))
        is_of_one_item = len(shape) == len(type.shape) and shape[0] == 1
        if not is_of_one_item:
            raise InputError(
                f"--shape: {show(shape)} is no shape of an item of input '{name}', "
                f"whose shape is {show(type.shape)}",
                hint="an item has the same number of axes, and its first extent is 1",
            )
        if not is_known(shape):
            extents = show(shape)[1:-1].replace("?", "224")
            raise InputError(
                f"the shape of an item of input '{name}' has open extents: {show(shape)}",
                hint=f"give all extents: --shape {name}={extents}",
            )
        specs.append(TensorSpec(name, shape, type.dtype))
    if not specs:
        raise InputError(f"{network.graph.name} has no inputs")
    return tuple(specs)


def _declared(network: Network) -> int:
    """Return the batch extent that the document declares, or 0.

    The result is 0 if the batch is open, or if the first extents of the inputs differ.
    """
    from lowering.extents import is_known

    first_extents = {value.type.shape[:1] for value in network.graph.inputs}
    if len(first_extents) != 1:
        return 0
    (shape,) = first_extents
    return shape[0] if shape and is_known(shape) else 0


def _load(
    source: str, specs: Sequence[TensorSpec], size: int, declared: int, **options: Any
) -> Model:
    """Load a network for batches of `size` items.

    `declared` is the batch extent that the document declares. Raises InputError if the network
    cannot compute batches of this size.
    """
    from nnef_jax import InputError, NnefError, load
    from nnef_jax.errors import raise_all

    hint = ""
    if declared and declared != size:
        hint = f"the document declares batches of {declared}: give --batch-size {declared}"
    shapes = {spec.name: (size, *spec.shape[1:]) for spec in specs}
    try:
        model = load(source, input_shapes=shapes, **options)
    except NnefError as error:
        message = f"the network cannot compute batches of {size} items"
        raise_all([*error.errors, InputError(message, hint=hint)])
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
        count: the number of all items.
        computed: the number of items that this run has computed.
        devices: the number of devices.
    """
    from nnef_jax import DataError

    path_of_failures = parts.write_failures()
    plural = "s" if devices > 1 else ""
    counts = f"{count} files: {computed} on {devices} device{plural}"
    if computed < count:
        counts += f", {count - computed} by an earlier run"
    damaged = [f"{path}: damaged, its items were computed again" for path in parts.damaged]
    print_result(*damaged, counts, f"saved {parts.folder}")
    if parts.failures:
        for _, text in parts.failures[:_SHOWN]:
            report_error(*text.split("\n"))
        message = f"{len(parts.failures)} of {count} files failed"
        raise DataError(message, hint=f"{path_of_failures} lists them, as --list reads them")
