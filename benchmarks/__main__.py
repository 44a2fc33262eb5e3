"""Runs the benchmarks. The README beside this file describes what they measure."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import (
    against,
    change,
    drawn,
    figures,
    inference,
    machine,
    parsing,
    passes,
    report,
    startup,
    training,
)
from benchmarks.engines import ENGINES, Engine
from benchmarks.networks import NETWORKS, described
from benchmarks.timing import DisagreementError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks that the command line selects, and write their results.

    Returns the exit status. It is 1 if the engines' results differ, if nnef_jax cannot run a
    network, or if the commit of `--against` cannot be compared with.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.against is not None and (options.engines or options.plot or options.passes):
        parser.error("--against has no engines beside nnef_jax, no passes, and no plot")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # the other engines run on CPUs
    console = Console(width=None if sys.stdout.isatty() else 140)
    if options.drawn:
        options.networks = drawn.names(options.seed, options.drawn)
    document: dict[str, Any] = {"machine": machine.description()}
    report.print_machine(console, document["machine"])
    extras = [n for n in _EXTRAS if getattr(options, n) or (options.all and n != "passes")]
    if options.against is not None:
        return _compare(options, extras, console, document)
    engines = _installed(options.engines or _USUAL, console)
    try:
        if options.all or not extras:
            _infer(options, engines, console, document)
        for name in extras:
            _EXTRAS[name](options, engines, console, document)
    except DisagreementError as error:
        console.print(f"error: {error}", style="red", markup=False)
        return 1
    _write(options, document)
    return int(any(inference.SUBJECT in r["failures"] for r in document.get("inference", ())))


def _compare(options: Any, extras: list[str], console: Console, document: dict[str, Any]) -> int:
    parts = [*extras, *(["table"] if options.all or not extras else [])]
    tasks = figures.tasks(parts, options.networks, options.batch)
    try:
        found = against.run(options.against, tasks, options.rounds, console)
    except against.AgainstError as error:
        console.print(f"error: {error}", style="red", markup=False)
        return 1
    except KeyboardInterrupt:
        return 130
    _write(options, document | {"against": found})
    return int(any(entry["by"] == change.THIS for entry in found["left_out"]))


def _write(options: Any, document: dict[str, Any]) -> None:
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")


def _infer(options: Any, engines: list[Engine], console: Console, document: dict[str, Any]) -> None:
    found = inference.run(engines, options.networks, options.batch, options.rounds)
    results = _print_each(found, console)
    document["inference"] = [result.as_dict() for result in results]
    document["summary"] = report.summarise(results)
    if options.drawn:
        document["drawn"] = drawn.report(results, console)
    if options.plot:
        report.plot(results, options.plot)


def _training(
    options: Any, engines: list[Engine], console: Console, document: dict[str, Any]
) -> None:
    networks = [name for name in training.TRAINED if name in options.networks]
    results = _print_each(training.run(engines, networks, options.rounds), console)
    document["training"] = [result.as_dict() for result in results]


def _print_each(found: Iterable[inference.Result], console: Console) -> list[inference.Result]:
    """Print each result as soon as it is measured, and a table of all results at the end."""
    results: list[inference.Result] = []
    for result in found:
        results.append(result)
        console.print(f"{result.network}, batch {result.batch}: {report.line(result)}")
    report.print_results(console, results)
    return results


def _startup(
    options: Any, engines: list[Engine], console: Console, document: dict[str, Any]
) -> None:
    chosen = options.networks if options.networks != list(NETWORKS) else startup.NETWORKS
    document["startup"] = startup.run(options.rounds, chosen, options.batch)
    for title, rows in document["startup"].items():
        report.print_facts(console, title, rows)


def _parse(options: Any, engines: list[Engine], console: Console, document: dict[str, Any]) -> None:
    document["parse"] = parsing.run(options.rounds)
    report.print_facts(
        console, "text to a checked graph, against the nnef wheel", document["parse"]
    )


def _passes(
    options: Any, engines: list[Engine], console: Console, document: dict[str, Any]
) -> None:
    results: list[passes.Earned] = []
    for result in passes.run(options.networks, options.batch, options.rounds):
        results.append(result)
        ratios = (f"{name} {ratio:.2f}" for name, ratio in result.ratios.items())
        console.print(f"{result.title}: {', '.join(ratios)}")
    passes.print_earned(console, results)
    document["passes"] = [result.as_dict() for result in results]


_EXTRAS: dict[str, Callable[[Any, list[Engine], Console, dict[str, Any]], None]] = {
    "training": _training,
    "startup": _startup,
    "parse": _parse,
    "passes": _passes,
}


_USUAL = [name for name, engine in ENGINES.items() if engine.is_usual]


def _installed(names: Sequence[str], console: Console) -> list[Engine]:
    """Return the engines that are installed, and print the names of the others."""
    found: list[Engine] = []
    for name in names:
        kind = ENGINES[name]
        if missing := kind.missing():
            console.print(f"{name} is left out: {', '.join(missing)} not installed")
        else:
            found.append(kind())
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("--networks", type=_networks, default=list(NETWORKS), help=", ".join(NETWORKS))
    add("--drawn", type=_count, help="so many networks that a seed draws, instead of those")
    add("--seed", type=int, default=0, help="of these")
    add("--engines", type=_names(ENGINES), help=", ".join(ENGINES))
    add("--batch", type=_counts, default=[1, 8], help="sizes")
    add("--rounds", type=_count, default=8, help="turns of each engine")
    add("--against", metavar="COMMIT", help="this checkout against a commit, instead of engines")
    add("--json", type=_file, help="file to write everything to")
    add("--plot", type=_file, help="picture of the ratios to write")
    add("--training", action="store_true", help="value and gradient, instead of the table")
    add("--startup", action="store_true", help="first result, memory, dispatch, instead of it")
    add("--parse", action="store_true", help="reading large texts, instead of it")
    add("--passes", action="store_true", help="what each pass for CPUs earns, instead of it")
    add("--all", action="store_true", help="the table and these, but for passes")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"a positive number is needed, not '{text}'")
    return int(text)


def _counts(text: str) -> list[int]:
    return [_count(part) for part in text.split(",")]


def _file(text: str) -> Path:
    if not Path(text).parent.is_dir():  # tell it before hours of measuring
        raise argparse.ArgumentTypeError(f"there is no folder {Path(text).parent}")
    return Path(text)


def _networks(text: str) -> list[str]:
    for name in (names := text.split(",")):
        try:
            described(name)
        except KeyError:
            raise argparse.ArgumentTypeError(f"unknown: {name}") from None
    return names


def _names(known: Any) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}")
        return names

    return parse


if __name__ == "__main__":
    raise SystemExit(main())
