"""`load`: from a path, bytes or file to a `Model`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import BinaryIO, Literal, get_args

import jax

from lowering.location import Source as TextSource
from lowering.ops import nnef as standard_rules
from lowering.registry import Registry
from lowering.trace import Context
from nnef_jax.limits import Limits
from nnef_jax.model import Model
from nnef_jax.network import Network
from nnef_jax.quantization import QuantizationReader
from nnef_jax.storage.archive import open_archive
from nnef_jax.text.checks import check
from nnef_jax.text.library import Scope, signatures
from nnef_jax.text.options import Expand, Options
from nnef_jax.text.parser import parse
from nnef_jax.variables import Progress, read_variables

Quantization = Literal["apply", "ignore"]
Source = str | os.PathLike[str] | bytes | BinaryIO
_REAL_DTYPES = ("float32", "bfloat16", "float16", "float64")


def load(
    source: Source,
    *,
    input_shapes: Mapping[str, Sequence[int | None]] | None = None,
    dtype: str = "float32",
    precision: jax.lax.PrecisionLike = None,
    quantization: Quantization = "apply",
    expand: Expand = "auto",
    rules: Registry | None = None,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> Model:
    """Read an NNEF network and return it as a jitted callable.

    Args:
        source: a folder, a `graph.nnef`, a tar archive (plain, gz, bz2, xz), the bytes of one, or
            an open binary file.
        input_shapes: shapes by input name that replace the document's; None is an extent that each
            call may choose, and the network is compiled once for each choice.
        dtype: what scalar tensors are computed in: "float32", "bfloat16", "float16", "float64"
            (needs jax's x64 mode). Integer tensors are int32, logical ones bool.
        precision: of matrix products and convolutions, as in `jax.lax.dot`; None is jax's default.
        quantization: "apply" rounds each tensor that graph.quant names once it is computed,
            "ignore" rounds none. Variables stored quantised become real numbers in either case.
        expand: "auto" keeps compound operations of the standard whole where there is a rule for
            them, "all" expands them to primitives by their definitions.
        rules: rules for operations beyond the standard, or in place of its own.
        limits: bounds on what is read.
        progress: called with the numbers of variables read and of all, before each of them.

    Raises:
        FileNotFoundError: there is nothing at the path.
        NnefError: something is wrong with the network; the message says what, where, and what to
            do.

    Example:
        >>> model = nnef_jax.load("examples/digits/model")
        >>> probabilities = model(images)
    """
    network, registry = read(
        source,
        input_shapes=input_shapes,
        dtype=dtype,
        quantization=quantization,
        expand=expand,
        rules=rules,
        limits=limits,
        progress=progress,
    )
    return Model(network, registry, Context(precision))


def read(
    source: Source,
    *,
    input_shapes: Mapping[str, Sequence[int | None]] | None = None,
    dtype: str = "float32",
    quantization: Quantization = "apply",
    expand: Expand = "auto",
    rules: Registry | None = None,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> tuple[Network, Registry]:
    """Read and check a network without touching a device; also the rules to run it with."""
    if dtype not in _REAL_DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(_REAL_DTYPES)}, it is {dtype!r}")
    if dtype == "float64" and not jax.config.read("jax_enable_x64"):
        raise ValueError(
            "dtype='float64' needs jax's x64 mode: jax.config.update('jax_enable_x64', True)"
        )
    if quantization not in get_args(Quantization):
        raise ValueError(f"quantization must be 'apply' or 'ignore', it is {quantization!r}")
    limits = limits or Limits()
    registry = registry_of_standard()
    if rules is not None:
        registry = registry.overlay(rules)
    options = Options(registry, expand, dtype, dict(input_shapes or {}), limits)
    with open_archive(source, limits) as archive:
        network = _network(archive.read_text("graph.nnef"), options)
        if archive.exists("graph.quant"):
            network.quantization = archive.read_text("graph.quant")
        reader = QuantizationReader(network.document, network.scope, options)
        quantizers = reader.entries(network.quantization) if network.quantization else {}
        stored = read_variables(network.graph, archive, limits, quantizers, reader.header, progress)
    network.data = stored.data
    pending = {name: q for name, q in quantizers.items() if name not in stored.dequantized}
    if pending and quantization == "apply":
        network = network.quantized(pending)
    return network, registry


def network_of_text(text: str) -> Network:
    """The network that a document describes, without data for its variables."""
    return _network(TextSource("graph.nnef", text), Options(registry_of_standard()))


def _network(text: TextSource, options: Options) -> Network:
    document = parse(text, options.limits)
    scope = Scope(document)
    check(document, scope)
    return Network(document, scope, options)


def registry_of_standard() -> Registry:
    """The rules of the standard operations; TypeError where one does not match its declaration."""
    global _checked
    if not _checked:
        standard_rules.check_signatures(signatures())
        _checked = True
    return standard_rules


_checked = False
