"""`nnef-jax serve`: networks over HTTP."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Annotated, Any

import typer

from nnef_jax.cli import command_options as option
from nnef_jax.cli.commands import app
from nnef_jax.cli.terminal import print_result, status


@app.command()
@option.grouped
def serve(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]SOURCE...",
            help="The networks, each by a name in URLs: that of its file without one.",
            show_default=False,
        ),
    ],
    host: Annotated[
        str, typer.Option(help="The address to listen at; 0.0.0.0 lets other machines in.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8080,
    sizes: Annotated[
        str, typer.Option(metavar="NUMBERS", help="Of batches, with commas between.")
    ] = "1,2,4,8,16,32",
    delay: Annotated[
        float, typer.Option(min=0, help="Seconds that a request waits for others.")
    ] = 0.002,
    timeout: Annotated[
        float,
        typer.Option(min=0.001, help="Seconds that a request may take."),
    ] = 30.0,
    body: Annotated[int, typer.Option(min=1, help="Bytes of the largest request.")] = 64 << 20,
    queue: Annotated[int, typer.Option(min=1, help="Requests that wait for a network.")] = 256,
    reading: option.Reading = option.Reading(),
    cache_dir: option.CacheDir = None,
    no_cache: option.NoCache = False,
) -> None:
    """Serve networks by the Open Inference Protocol 2, until SIGINT or SIGTERM."""
    named = dict(map(_named, sources))
    if len(named) < len(sources):
        raise typer.BadParameter("two networks have the same name", param_hint="SOURCE")
    numbers = [int(x) for x in sizes.split(",") if x.strip().isdecimal()]
    if len(numbers) != len(sizes.split(",")):
        raise typer.BadParameter(f"{sizes!r} are no numbers as in 1,8,32", param_hint="--sizes")
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    with option.caching(cache_dir, no_cache) as folder:
        with status(f"reading {', '.join(named)}") as progress:
            from nnef_jax import load
            from nnef_jax.serving import ServingLimits, app, require_packages

            require_packages("starlette", "prometheus_client", "uvicorn")
            from nnef_jax.serving.server import Server

            options: dict[str, Any] = {"cache_dir": folder, "measure": bool(folder)}
            options |= {"progress": progress, **reading.keywords}
            models = {name: load(source, **options) for name, source in named.items()}
        limits = ServingLimits(delay=delay, timeout=timeout, body=body, queue=queue)
        with ExitStack() as compiling:
            progress = compiling.enter_context(status(f"compiling {', '.join(models)}"))

            def ready(done: int, total: int) -> None:
                if progress:
                    progress(done, total)
                if done == total:
                    compiling.close()
                    print_result("ready")

            def listening(url: str) -> None:
                print_result(f"listening at {url}: {', '.join(models)}")

            application = app(models, sizes=numbers, limits=limits, progress=ready)
            Server(application, host, port, timeout, listening).run()


def _named(text: str) -> tuple[str, str]:
    """Return the name and the source in [NAME=]SOURCE."""
    name, equals, source = text.partition("=")
    if equals and "/" not in name:
        return name, source
    return option.name_of(text), text
