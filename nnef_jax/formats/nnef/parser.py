"""From text to syntax tree (spec 3.1, 3.2): the entry points, and what the grammar does not say.

The grammar is lark's, which is loaded only for a text that the fast reader leaves to it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from lowering.location import Source, Span
from nnef_jax.errors import NnefSyntaxError
from nnef_jax.formats.nnef import dialects
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.flat_statements import FlatReader, NotFlat
from nnef_jax.formats.syntax.tokens import count_tokens
from nnef_jax.limits import TOKEN, Meter

_HEADER = re.compile(r"(?:\s|#[^\n\f]*[\n\f])*version\s+1\.0\s*;")
_EXTENSION = re.compile(r"\s*extension\s+([^;#,\s][^;#\n,]*(?:,[ \t]*[^;#,\s][^;#\n,]*)*);")


def parse(source: Source, meter: Meter) -> s.Document:
    """Return the syntax tree of a document of either dialect.

    Raises NnefSyntaxError where the text does not follow the grammar, LimitError where expressions
    are nested too deeply or there are too many tokens.
    """
    return parse_flat(source, meter.limits.nesting) or parse_by_grammar(source, meter)


def parse_flat(source: Source, nesting: int) -> s.Document | None:
    """Return the syntax tree of a flat document of 1.0 final, None for any other text."""
    text = source.text
    header = _HEADER.match(text)
    if header is None:
        return None
    position, extensions = header.end(), list[str]()
    while match := _EXTENSION.match(text, position):
        position = match.end()
        extensions += [name.strip() for name in match[1].split(",")]
    try:
        graph = FlatReader(text, position, nesting).graph()
    except (NotFlat, RecursionError):
        return None
    return s.Document(source, "1.0", False, tuple(extensions), (), graph)


def parse_by_grammar(source: Source, meter: Meter) -> s.Document:
    """Parse by the grammar alone."""
    meter.spend(TOKEN * count_tokens(source.text), source.name)
    provisional = dialects.is_provisional(source.text)
    text = source.text
    if provisional:
        spaced = dialects.space_statements(text)
        source = source if spaced == text else Source(source.name, spaced)
        text = dialects.end_statements(spaced)
    nesting = meter.limits.nesting
    version, extensions, fragments, graph, features = _read(
        "document", source, text, nesting, provisional=provisional
    )
    document = s.Document(source, version, provisional, extensions, fragments, graph)
    dialects.check_features(source, provisional, features)
    _check_extensions(document, features)
    return document


def parse_quantization(source: Source, meter: Meter) -> Sequence[tuple[s.Literal, s.Expression]]:
    """Return the entries of a graph.quant text (spec 5.3): tensor and quantising operation."""
    meter.spend(TOKEN * count_tokens(source.text), source.name)
    return _read("quantization", source, source.text, meter.limits.nesting)


def _read(start: str, source: Source, text: str, nesting: int, *, provisional: bool = False) -> Any:
    from nnef_jax.formats.nnef.tree_builder import grammar_reader

    return grammar_reader().read(start, source, text, nesting, provisional=provisional)


def _check_extensions(document: s.Document, features: Sequence[tuple[str, int]]) -> None:
    """Compositional syntax needs its extensions in 1.0 final.

    The provisional text calls the graph flat, yet computes arguments in it (appendix C, chapter 7):
    there it is the statements of the graph that must be plain invocations.
    """
    source = document.source
    if document.provisional:
        for statement in document.graph.body:
            if not isinstance(statement.value, s.Invocation):
                raise NnefSyntaxError(
                    "a statement of the graph must invoke an operation",
                    span=s.span_in(source, statement.value),
                    hint="the graph of a provisional document is flat: "
                    "move expressions into a fragment",
                )
        return
    first = dict(reversed(features))
    for construction, (extension, message) in dialects.EXTENDED.items():
        if construction in first and extension not in document.extensions:
            hint = f"write 'extension {extension};' after the version"
            raise NnefSyntaxError(message, span=Span(source, first[construction]), hint=hint)
