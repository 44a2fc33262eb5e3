"""Which declaration a name stands for: the operations of a dialect, and a document's fragments."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from nnef_jax.formats.syntax.invocation import Form, form_of
from nnef_jax.formats.syntax.parsing import read_package
from nnef_jax.formats.syntax.standard import standard
from nnef_jax.formats.syntax.tree import Document, Fragment, Invocation, invocations
from nnef_jax.limits import BINDING, Meter
from nnef_jax.similar import did_you_mean


@cache
def provisional() -> Mapping[str, Fragment]:
    """Return the operations of NNEF 1.0 provisional by name."""
    return dict(standard()) | read_package("nnef_jax.formats.nnef", "provisional.nnef")


# Operations that only 1.0 final has: a provisional document may define fragments of these names.
FINAL_ONLY = {
    "slice", "squeeze", "unsqueeze", "stack", "unstack", "tile", "pad", "gather", "cast",
    "sin", "cos", "tan", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh",
    "argmax_reduce", "argmin_reduce", "any_reduce", "all_reduce", "softabs", "selu", "gelu", "silu",
    "prelu", "avg_roi_pool", "max_roi_pool", "roi_resample", "avg_roi_align", "max_roi_align",
    "min_max_linear_quantize", "zero_point_linear_quantize",
}  # fmt: skip


class Scope:
    """The operations that a document may call: its own fragments and those of its dialect.

    The body of a library fragment is read in the standard library alone, so that a provisional
    operation can be written by the final one of the same name. `meter` is that of the load.
    """

    def __init__(self, document: Document, meter: Meter) -> None:
        self.document = document
        self.meter = meter
        self.library = provisional() if document.provisional else standard()
        self._own = {fragment.name: fragment for fragment in document.fragments}
        self._known = {**self.library, **self._own}
        self._forms: dict[tuple[int, tuple[str | None, ...]], Form] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        # What is known of library fragments goes by their identity.
        return Scope, (self.document, self.meter)

    def is_taken(self, name: str) -> bool:
        """Tell whether the dialect of the document has an operation of this name."""
        return name in self.library and not (self.document.provisional and name in FINAL_ONLY)

    def lookup(self, name: str, caller: Fragment | None) -> Fragment | None:
        """Return the declaration of an operation in a fragment's body, or in the graph (None)."""
        if caller is not None and caller.source is not self.document.source:
            return standard().get(name)
        return self._known.get(name)

    def undeclared(self) -> set[str]:
        """Return the names of operations that the document calls and nothing declares."""
        bodies = [self.document.graph.body, *(x.body or () for x in self.document.fragments)]
        calls = invocations(assignment.value for body in bodies for assignment in body)
        return {node.operation for node in calls if node.operation not in self._known}

    def form(self, fragment: Fragment, invocation: Invocation) -> Form:
        """Call `form_of` once for arguments of the same names."""
        key = (id(fragment), tuple([argument.name for argument in invocation.arguments]))
        form = self._forms.get(key)
        if form is None:
            self.meter.spend(BINDING * len(fragment.parameters), self.document.source.name)
            form = self._forms[key] = form_of(fragment, invocation)
        return form

    def similar(self, name: str) -> str:
        """Return a hint that names operations which one may have meant, or ''."""
        return did_you_mean(name, self._own, self.library, meter=self.meter, cutoff=0.7)
