"""The command `nnef-jax serve`, which serves networks over HTTP."""

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
            help="The networks. NAME is used in URLs; by default it is the name of the file.",
            show_default=False,
        ),
    ],
    host: Annotated[
        str, typer.Option(help="The address to listen at; 0.0.0.0 lets other machines in.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port to listen at; 0 takes a free one.")
    ] = 8080,
    sizes: Annotated[
        str, typer.Option(metavar="NUMBERS", help="Batch sizes to compile for, comma-separated.")
    ] = "1,2,4,8,16,32",
    delay: Annotated[
        float, typer.Option(min=0, help="Seconds that a request waits for others in its batch.")
    ] = 0.002,
    timeout: Annotated[
        float,
        typer.Option(min=0.001, help="Seconds that a request may take."),
    ] = 30.0,
    body: Annotated[int, typer.Option(min=1, help="The largest size of a request, in bytes.")] = 64
    << 20,
    queue: Annotated[
        int, typer.Option(min=1, help="The most requests that may wait for a network.")
    ] = 256,
    log_level: Annotated[
        Literal["info", "warning", "error"],
        typer.Option(help="What is written to stderr: info has a line for each request."),
    ] = "warning",
    reading: option.Reading = option.Reading(),
    cache_dir: option.CacheDir = None,
    no_cache: option.NoCache = False,
) -> None:
    """Serve networks by the Open Inference Protocol 2.

    SIGINT and SIGTERM end the server. --shape and --value apply to all networks, or to a single
    network in the form NETWORK:NAME=...
    """
    sources_by_name = dict(map(_name_and_source, sources))
    if len(sources_by_name) < len(sources):
        raise typer.BadParameter("two networks have the same name", param_hint="SOURCE")
    batch_sizes = _batch_sizes(sizes)
    logging.basicConfig(format="%(asctime)s %(levelname)s: %(message)s", level=logging.WARNING)
    logging.getLogger("nnef_jax").setLevel(log_level.upper())
    with option.caching(cache_dir, no_cache) as folder:
        with status(f"reading {', '.join(sources_by_name)}") as progress:
            from nnef_jax import load
            from nnef_jax.serving import ServingLimits, app, require_packages

            require_packages("starlette", "prometheus_client", "uvicorn")
            from nnef_jax.serving.server import Server, listeners

            sockets = listeners(host, port)
            options: dict[str, Any] = {
                "cache_dir": folder,
                "measure": bool(folder),
                "progress": progress,
            }
            models: dict[str, Any] = {}
            for name, source in sources_by_name.items():
                keywords = _reading_of(name, sources_by_name, reading).keywords
                models[name] = load(source, **options, **keywords)
        limits = ServingLimits(delay=delay, timeout=timeout, body=body, queue=queue)
        # While the networks are compiled, the server listens already. When all networks are
        # compiled, `show_ready` ends the status.
        with ExitStack() as compiling:
            progress = compiling.enter_context(status(f"compiling {', '.join(models)}"))

            def show_ready(ready_count: int, model_count: int) -> None:
                if progress:
                    progress(ready_count, model_count)
                if ready_count == model_count:
                    compiling.close()
                    _write_line("ready")

            def listening(url: str) -> None:
                _write_line(f"listening at {url}: {', '.join(models)}")

            application = app(models, sizes=batch_sizes, limits=limits, progress=show_ready)
            # When the server writes to a client that has disconnected, the system sends the signal
            # SIGPIPE. By default this signal ends the process. Windows has no SIGPIPE.
            if hasattr(signal, "SIGPIPE"):
                signal.signal(signal.SIGPIPE, signal.SIG_IGN)
            server = Server(application, host, port, idle=timeout, listening=listening)
            server.run(sockets)


def _write_line(text: str) -> None:
    """Write a line to standard output. If that fails, the server continues."""
    with suppress(OSError):
        print_result(text)


def _batch_sizes(text: str) -> list[int]:
    """Return the numbers in the text of the option --sizes, such as 1,8,32."""
    words = text.split(",")
    sizes = [int(word) for word in words if word.strip().isdecimal()]
    if len(sizes) != len(words):
        message = f"{text!r} is not a list of numbers such as 1,8,32"
        raise typer.BadParameter(message, param_hint="--sizes")
    return sizes


def _reading_of(name: str, names: Collection[str], reading: option.Reading) -> option.Reading:
    """Return the options for reading the network `name`.

    An option such as "digits:x=1,28,28" is only for the network "digits". An option without the
    name of a network is for all networks. `names` are the names of all networks.
    """

    def for_network(texts: Sequence[str] | None) -> list[str]:
        """Return the texts of an option that are for the network, without the network's name."""
        selected: list[str] = []
        for text in texts or ():
            network, _, option_of_network = text.partition(":")
            # A text such as "x=1,28,28" does not begin with the name of a network and a colon.
            is_for_all = network not in names
            if is_for_all:
                selected.append(text)
            elif network == name:
                selected.append(option_of_network)
        return selected

    return replace(reading, shapes=for_network(reading.shapes), values=for_network(reading.values))


def _name_and_source(text: str) -> tuple[str, str]:
    """Return the name and the source in the text [NAME=]SOURCE.

    Without NAME, the name of the source's file or folder is the name.
    """
    name, equals, source = text.partition("=")
    # In a text such as "runs/lr=0.1/net.nnef", the "=" is a part of the path.
    if equals and "/" not in name:
        return name, source
    return option.name_of(text), text
