"""Computes the key of a compiled function: a digest of everything that the function depends on."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

import jax
import ml_dtypes
import numpy as np
from jaxlib.version import __version__ as jaxlib_version
from numpy.typing import ArrayLike

import lowering
import nnef_jax
from lowering import processor
from lowering.graph import Graph, Value

if TYPE_CHECKING:
    from nnef_jax.execution.places import Device
    from nnef_jax.reading.network import Network

# A setting of jax is not part of the key if its name contains one of these words. The words are in
# the names of settings for logs, for cache folders, and for the choice of devices. All other
# settings are part of the key, also those that a later version of jax adds.
_IRRELEVANT = re.compile(
    "cache|cross_host|default_device|dump|_log_|logging|platform|traceback|visible"
)


def key_of(graph: Graph, device: Device, *conditions: object) -> str:
    """Return the cache key of an executable for a graph on a device.

    `conditions` are all other objects on which the executable depends. Their reprs are part of
    the key. The key depends on the graph instead of the document, because the structure of a
    graph may depend on data too.
    """
    device_facts = device.platform, device.device_kind, device.id, device.client.platform_version
    texts = [*_environment()]
    texts += map(repr, device_facts)
    texts += map(repr, conditions)
    texts += described(graph)
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def digest_of_graph(graph: Graph) -> str:
    """Return a sha256 of everything in a graph that affects results or names in profiles.

    The digest is the same in all processes.
    """
    return hashlib.sha256("\0".join(described(graph)).encode()).hexdigest()


def described(graph: Graph, numbers: dict[Value, int] | None = None) -> Iterator[str]:
    """Yield texts that contain everything in a graph that affects results or names in profiles.

    If the graph is inside another graph, such as the body of a loop, `numbers` maps the values
    of the outer graph to their numbers.
    """
    if numbers is None:
        numbers = {}

    def shown(item: object) -> str:
        """Return the text of a value, a graph, an attribute, or a tuple of these."""
        match item:
            case Value():
                number = numbers.setdefault(item, len(numbers))
                return f"{item.name!r}%{number}:{item.type}"
            case np.generic():
                # A number of bfloat16 and a number of float32 may have equal reprs, so the dtype is
                # added.
                return f"{item.dtype}:{item!r}"
            case Graph():
                return "".join(described(item, numbers))
            case tuple():
                return f"({','.join(map(shown, item))})"  # pyright: ignore[reportUnknownArgumentType]
            case _:
                return repr(item)

    yield shown(graph.inputs)
    yield shown(tuple((parameter.label, parameter.value) for parameter in graph.parameters))
    for operation in graph.operations:
        yield shown((operation.kind, operation.operands, operation.attributes, operation.results))
    yield shown(tuple((state.label, state.value, state.reads()) for state in graph.states))
    yield shown((graph.output_names, graph.outputs))


def _environment() -> Iterator[str]:
    """Yield texts for the compiler, the installed packages and jax's settings."""
    yield from compiler_versions()
    yield from _installation()
    for name, process_value in sorted(jax.config.values.items()):
        if not _IRRELEVANT.search(name):
            # This thread's value of a setting is an attribute of `jax.config`, and may differ from
            # the process's value. Some settings have no attribute.
            value = getattr(jax.config, name, process_value)
            yield f"{name}={value!r}"


def content_of(network: Network, unread: Mapping[str, ArrayLike]) -> tuple[object, ...]:
    """Return a tuple by which networks are compared: equal tuples mean equal results.

    The first item is a digest of the network and of its unread arrays. All later items are
    objects without a digest, for example the functions of a user's rules.
    """
    reading = network.options
    shapes = sorted((name, *shape) for name, shape in reading.input_shapes.items())
    fixed_inputs = reading.values.items()
    values = sorted((name, x.dtype.name, x.shape, x.tobytes()) for name, x in fixed_inputs)
    extents = sorted(reading.extents.items())
    limits = reading.meter.limits
    settings = reading.expand, reading.real, reading.rounds, limits, shapes, values, extents
    texts = [repr(settings), repr(sorted(network.pairs.items())), *described(network.graph)]
    for label in sorted(unread):
        texts += label, *_texts_of_array(unread[label])
    objects: list[object] = []
    for item in network.frontend.content():
        if isinstance(item, str | bytes):
            # A document may be large, so only its digest is kept.
            content = item if isinstance(item, bytes) else item.encode()
            texts.append(hashlib.sha256(content).hexdigest())
        else:
            objects.append(item)
    for name in sorted(reading.rules):
        rule = reading.rules[name]
        objects += name, rule.infer, rule.lower, rule.work
    return hashlib.sha256("\0".join(texts).encode()).hexdigest(), *objects


def _texts_of_array(array: ArrayLike) -> tuple[str, ...]:
    """Return texts for an array: its dtype with its shape, and a digest of its items.

    A `jax.ShapeDtypeStruct` has no items. Its only text is its repr.
    """
    if isinstance(array, jax.ShapeDtypeStruct):
        return (repr(array),)
    x = np.asarray(array)
    return f"{x.dtype}{x.shape}", hashlib.sha256(x.tobytes()).hexdigest()


def compiler_versions() -> tuple[str, ...]:
    """Return the versions of jax and jaxlib, and the compiler's flags."""
    return jax.__version__, jaxlib_version, _flags("XLA_FLAGS"), _flags("LIBTPU_INIT_ARGS")


def _flags(variable: str) -> str:
    """Return the compiler's flags in the environment variable `variable`.

    If the variable has the path of a file, the flags are in the file.
    """
    flags_or_path = os.environ.get(variable, "")
    may_be_path = flags_or_path and not flags_or_path.startswith("-")
    if may_be_path:
        with suppress(OSError), open(flags_or_path, encoding="utf-8", errors="replace") as file:
            return file.read()
    return flags_or_path


@cache
def _installation() -> tuple[str, ...]:
    """Return texts for the versions of packages and Python, the source files, and the processor."""
    versions = [nnef_jax.__version__, sys.version, np.__version__, ml_dtypes.__version__]
    return tuple([*versions, *_sources(), *processor()])


def _sources() -> Iterator[str]:
    """Yield a text for each source file of the packages, with its size and modification time.

    During development the sources change, but the version of the package stays the same.
    """
    for package in (nnef_jax, lowering):
        package_folder = os.path.dirname(package.__file__ or "")
        for folder, _, names in os.walk(package_folder):
            for name in sorted(names):
                if name.endswith((".py", ".nnef", ".lark")):
                    status = os.stat(os.path.join(folder, name))
                    yield f"{folder}/{name} {status.st_size} {status.st_mtime_ns}"
