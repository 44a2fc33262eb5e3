"""From text to syntax tree (spec 3.1, 3.2): the entry points, and what the grammar does not say."""

from __future__ import annotations

from collections.abc import Sequence

from lowering.location import Source, Span
from nnef_jax.errors import NnefSyntaxError
from nnef_jax.formats.nnef import dialects
from nnef_jax.formats.syntax import tree as s
from nnef_jax.formats.syntax.parsing import STANDARD
from nnef_jax.formats.syntax.tokens import count_tokens
from nnef_jax.limits import TOKEN, Meter


def parse(source: Source, meter: Meter) -> s.Document:
    """Return the syntax tree of a document of either dialect. Raises what `Parser.parse` does."""
    text = source.text
    provisional = dialects.is_provisional(text)
    if provisional:
        meter.spend(TOKEN * count_tokens(text), source.name)
        spaced, text = dialects.end_statements(text)
        source = source if spaced == source.text else Source(source.name, spaced)
    document, features = STANDARD.parse(source, meter, text=text, provisional=provisional)
    dialects.check_features(source, provisional, features)
    _check_extensions(document, features)
    return document


def parse_quantization(source: Source, meter: Meter) -> Sequence[tuple[s.Literal, s.Expression]]:
    """Return the entries of a graph.quant text (spec 5.3): tensor and quantising operation."""
    return STANDARD.parse(source, meter, "quantization")


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
