"""Helpers to write attacks: documents with an input x and an output y, and repetitions.

An attack makes an archive, its members or its document for a size, and does something with it. The
size beside it is one that the default limits are to withstand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax

import nnef_jax
from tests.helpers import tar

FINAL = (
    "version 1.0;\nextension KHR_enable_fragment_definitions;\n"
    "extension KHR_enable_operator_expressions;\n"
)
TRACT = "version 1.0;\nextension tract_registry tract_core;\n"
TRACT += "extension tract_registry tract_resource;\n"
X = "x: tensor<scalar>"
RESULT = "( y: tensor<scalar> )"
QUANT = '"{p}{i}": linear_quantize(min = 0.0, max = 1.0, bits = 8);'
Limits = nnef_jax.Limits | None
Use = Callable[[bytes, Limits], object]


def load(source: bytes, limits: Limits) -> object:
    """Load and summarise a network."""
    return str(nnef_jax.load(source, limits=limits).summary())


def traced(source: bytes, limits: Limits) -> object:
    """Trace a network as a call does, but neither compile nor run it."""
    model = nnef_jax.load(source, limits=limits)
    inputs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in model.inputs]
    return jax.eval_shape(model.apply, {}, *inputs)


def converted(source: bytes, limits: Limits) -> object:
    """Convert a network to a flat document."""
    return nnef_jax.convert(source, flat=True, limits=limits)


@dataclass(frozen=True)
class Attack:
    """Something that costs more than it should; `use` is what is done with it."""

    size: int
    make: Callable[[int], bytes | str | Mapping[str, bytes | str]]
    use: Use = load

    def source(self, n: int) -> bytes:
        """Return the archive of a size."""
        made = self.make(n)
        made = {"graph.nnef": made} if isinstance(made, str) else made
        return made if isinstance(made, bytes) else tar(made)


def graph(body: str, shape: str = "1, 2", head: str = FINAL, names: str = "y") -> str:
    """A document of the standard with an input x."""
    external = f"x = external<scalar>(shape = [{shape}]);"
    return f"{head}\ngraph net( x ) -> ( {names} )\n{{\n{external}\n{body}\n}}\n"


def final(body: str, fragments: str = "") -> str:
    """A document of the standard with fragments."""
    return graph(body, head=FINAL + fragments)


def tract(body: str, head: str = "", shape: str = "1, 2") -> str:
    """A document of tract's dialect."""
    external = f"x = tract_core_external(shape = [{shape}], datum_type = 'f32');"
    return f"{TRACT}{head}\ngraph net( x ) -> ( y )\n{{\n{external}\n{body}\n}}\n"


def fragment(body: str, name: str = "f", more: str = "", result: str = RESULT) -> str:
    """A fragment of a tensor x with further parameters."""
    return f"fragment {name}( {X}{more} ) -> {result} {{ {body} }}\n"


def used(statements: str, fragments: str = "") -> str:
    """Return a document that calls a fragment of these statements; each use is a short text."""
    return final("y = f(x);", fragments + fragment(f"{statements} y = x;"))


def times(n: int, template: str, **more: object) -> str:
    """Return a line for each number i below n; j is i + 1."""
    template += "\n"
    return "".join(template.format(i=i, j=i + 1, **more) for i in range(n))


def listed(n: int, template: str) -> str:
    """Return texts as `times` does, between commas."""
    return ", ".join(template.format(i=i) for i in range(n))
