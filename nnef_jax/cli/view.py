"""The command `nnef-jax view`, which writes a page that shows a network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from nnef_jax import DataError
from nnef_jax.cli import command_options as option
from nnef_jax.cli.commands import app
from nnef_jax.cli.terminal import print_result, status


@app.command()
@option.grouped
def view(
    source: option.Source,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write, NAME.html by default."),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(help="Colour by time, from the output of `nnef-jax profile --json`."),
    ] = None,
    compare: Annotated[
        Path | None,
        typer.Option(help="Colour by error, from the output of `nnef-jax compare --json`."),
    ] = None,
    reading: option.Reading = option.Reading(),
    overwrite: option.Overwrite = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the page's data as one JSON object.")
    ] = False,
) -> None:
    """Write a page that shows a network.

    The page has the graph of the network, its shapes, its weights, and the work of its operations.
    NAME is the name of the network's file or folder. With --json a page is written only if --output
    is given.
    """
    if output is None and not as_json:
        name = option.name_of(source) or "network"
        output = Path(f"{name}.html")
    network = reading.read(source, outline=True)
    with status("making the page"):
        from nnef_jax.viewing.page import page_of

        page = page_of(network, profile=_json_in(profile), comparison=_json_in(compare))
        if output is not None:
            page.save(output, overwrite=overwrite)
    if as_json:
        print_result(json.dumps(page.data, allow_nan=False))
    else:
        print_result(f"saved {output}")


def _json_in(path: Path | None) -> Any:
    """Return the JSON object in a file, or None without a file.

    Raises DataError for a file that is not a JSON object.
    """
    if path is None:
        return None
    from nnef_jax.storage import files

    with files.open_regular(str(path), DataError) as file:
        data = file.read()
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise DataError(f"{path}: not JSON") from None
    if not isinstance(document, dict):
        raise DataError(f"{path}: not a JSON object")
    return document
