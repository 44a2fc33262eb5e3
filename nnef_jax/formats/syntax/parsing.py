"""Parses texts by the fast reader. If the fast reader gives up, the grammar is used."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib.resources import files
from typing import Any

from lowering.location import Source
from nnef_jax.errors import NnefError
from nnef_jax.formats.syntax.reader import FastReader
from nnef_jax.formats.syntax.token_reader import NotUnderstood
from nnef_jax.formats.syntax.tokens import Language, count_tokens
from nnef_jax.formats.syntax.tree import Fragment
from nnef_jax.formats.syntax.tree_builder import TreeBuilder
from nnef_jax.limits import TOKEN_STEPS, Limits, Meter, within_memory


@dataclass
class Parser:
    """A parser of a language, whose grammar is a file of the package `package`.

    `starts` are the productions with which a text may start. The grammar and lark are loaded only
    if the fast reader gives up on a text.
    """

    package: str
    starts: tuple[str, ...]
    builder: type[TreeBuilder] = TreeBuilder
    language: Language = field(default_factory=Language)

    def parse(
        self,
        source: Source,
        meter: Meter,
        start: str = "document",
        text: str | None = None,
        provisional: bool = False,
    ) -> Any:
        """Parse a text by the production `start`; return the tree that the builder makes.

        `text` replaces the text of the source. All offsets must be the same in both texts. Raises
        NnefSyntaxError if the text does not follow the grammar. Raises LimitError if expressions
        are nested too deeply, or if there are too many tokens. Raises errors of the builder.
        """
        text = source.text if text is None else text
        new_builder = partial(self.builder, source, meter.limits.nesting, provisional)
        tree = self.fast(start, text, new_builder(), meter)
        if tree is None:
            tree = self.by_grammar(start, text, new_builder(), meter)
        return tree

    def fast(self, start: str, text: str, builder: TreeBuilder, meter: Meter) -> Any:
        """Return the tree that the fast reader builds, or None if the reader gives up."""
        # The remaining steps of the meter bound the number of tokens that may be read.
        most_tokens = (meter.limits.steps - meter.steps) // TOKEN_STEPS
        try:
            reader = FastReader(text, builder, self.language, most_tokens)
            read_production = getattr(reader, start)
            tree = read_production()
            reader.expect("")  # the token at the end of the text
        except (NotUnderstood, NnefError, RecursionError):
            return None
        token_count = most_tokens - reader.tokens_left
        meter.spend(TOKEN_STEPS * token_count, builder.source.name)
        return tree

    def by_grammar(self, start: str, text: str, builder: TreeBuilder, meter: Meter) -> Any:
        """Parse a text by the grammar; return the tree that the builder makes.

        This is slower than `fast`, and explains errors.
        """
        meter.spend(TOKEN_STEPS * count_tokens(text), builder.source.name)
        with within_memory("the text"):
            return self._grammar.read(start, text, builder)

    @cached_property
    def _grammar(self) -> Any:
        """Load the grammar, and return the reader that uses it."""
        from nnef_jax.formats.syntax.grammar import GrammarReader

        return GrammarReader(self.package, self.starts, self.builder)


# The parser of NNEF itself: documents of both dialects, libraries of declarations, and graph.quant.
STANDARD = Parser("nnef_jax.formats.syntax", ("document", "library", "quantization"))


def read_package(package: str, name: str) -> dict[str, Fragment]:
    """Return a dict from declared names to declarations, from the file `name` of a package."""
    text = files(package).joinpath(name).read_text(encoding="utf-8")
    meter = Meter(Limits.unbounded())
    return STANDARD.parse(Source(name, text), meter, "library")
