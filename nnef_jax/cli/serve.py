"""`nnef-jax serve`: networks over HTTP."""

from __future__ import annotations

import logging
import signal
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Annotated, Any, Literal

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
    log_level: Annotated[
        Literal["info", "warning", "error"],
        typer.Option(help="What is written to stderr: info has a line for each request."),
    ] = "warning",
    reading: option.Reading = option.Reading(),
    cache_dir: option.CacheDir = None,
    no_cache: option.NoCache = False,
) -> None:
    """Serve networks by the Open Inference Protocol 2, until SIGINT or SIGTERM.

    Of several networks a shape or a value is for one by NETWORK:NAME=..., for all without it.
    """
    named = dict(map(_named, sources))
    if len(named) < len(sources):
        raise typer.BadParameter("two networks have the same name", param_hint="SOURCE")
    numbers = [int(x) for x in sizes.split(",") if x.strip().isdecimal()]
    if len(numbers) != len(sizes.split(",")):
        raise typer.BadParameter(f"{sizes!r} are no numbers as in 1,8,32", param_hint="--sizes")
    logging.basicConfig(format="%(asctime)s %(levelname)s: %(message)s", level=logging.WARNING)
    logging.getLogger("nnef_jax").setLevel(log_level.upper())
    with option.caching(cache_dir, no_cache) as folder:
        with status(f"reading {', '.join(named)}") as progress:
            from nnef_jax import load
            from nnef_jax.serving import ServingLimits, app, require_packages

            require_packages("starlette", "prometheus_client", "uvicorn")
            from nnef_jax.serving.server import Server, listeners

            sockets = listeners(host, port)
            options: dict[str, Any] = {"cache_dir": folder, "measure": bool(folder)}
            options["progress"] = progress
            models = {
                name: load(source, **options, **_of(name, named, reading).keywords)
                for name, source in named.items()
            }
        limits = ServingLimits(delay=delay, timeout=timeout, body=body, queue=queue)
        with ExitStack() as compiling:
            progress = compiling.enter_context(status(f"compiling {', '.join(models)}"))

            def ready(done: int, total: int) -> None:
                if progress:
                    progress(done, total)
                if done == total:
                    compiling.close()
                    _tell("ready")

            def listening(url: str) -> None:
                _tell(f"listening at {url}: {', '.join(models)}")

            application = app(models, sizes=numbers, limits=limits, progress=ready)
            if hasattr(
                signal, "SIGPIPE"
            ):  # SIGPIPE would end the process when a client disconnects.
                signal.signal(signal.SIGPIPE, signal.SIG_IGN)
            Server(application, host, port, timeout, listening).run(sockets)


def _tell(text: str) -> None:
    """Write a line to standard output; the server continues if that fails."""
    with suppress(OSError):
        print_result(text)


def _of(name: str, named: Collection[str], reading: option.Reading) -> option.Reading:
    """Return the reading options for one network: options for it alone, and for all networks."""

    def for_network(texts: Sequence[str] | None) -> list[str]:
        split = [(text, *text.partition(":")) for text in texts or ()]
        return [
            part if before in named else text
            for text, before, _, part in split
            if before not in named or before == name
        ]

    return replace(reading, shapes=for_network(reading.shapes), values=for_network(reading.values))


def _named(text: str) -> tuple[str, str]:
    """Return the name and the source in [NAME=]SOURCE."""
    name, equals, source = text.partition("=")
    if equals and "/" not in name:
        return name, source
    return option.name_of(text), text
