"""Looks up declarations by name: the operations of a dialect, and a document's fragments."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from nnef_jax.formats.syntax.invocation import Form, form_of
from nnef_jax.formats.syntax.parsing import read_package
from nnef_jax.formats.syntax.standard import standard
from nnef_jax.formats.syntax.tree import Document, Fragment, Invocation, invocations
from nnef_jax.limits import BINDING_STEPS, Meter
from nnef_jax.wording.similar import did_you_mean


@cache
def provisional() -> Mapping[str, Fragment]:
    """Return a dict from names to the declarations of NNEF 1.0 provisional."""
    return dict(standard()) | read_package("nnef_jax.formats.nnef", "provisional.nnef")


# The names of operations that 1.0 final has, and 1.0 provisional lacks. A provisional document may
# define fragments with these names.
FINAL_ONLY = {
    "slice", "squeeze", "unsqueeze", "stack", "unstack", "tile", "pad", "gather", "cast",
    "sin", "cos", "tan", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh",
    "argmax_reduce", "argmin_reduce", "any_reduce", "all_reduce", "softabs", "selu", "gelu", "silu",
    "prelu", "avg_roi_pool", "max_roi_pool", "roi_resample", "avg_roi_align", "max_roi_align",
    "min_max_linear_quantize", "zero_point_linear_quantize",
}  # fmt: skip


class Scope:
    """The operations that a document may call: its fragments, and the operations of its dialect.

    The library is the set of operations of the dialect. The body of a fragment of the library only
    calls operations of 1.0 final. The reason is that an operation of 1.0 provisional may be defined
    by the operation of 1.0 final that has the same name.
    """

    def __init__(self, document: Document, meter: Meter) -> None:
        self.document = document
        self.meter = meter
        self.library: Mapping[str, Fragment] = provisional() if document.provisional else standard()
        self._fragments = {fragment.name: fragment for fragment in document.fragments}
        self._declarations = {**self.library, **self._fragments}
        self._forms: dict[tuple[int, tuple[str | None, ...]], Form] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        # `_forms` is not copied. Its keys have the ids of fragments, and copied fragments have
        # different ids.
        return Scope, (self.document, self.meter)

    def is_taken(self, name: str) -> bool:
        """Tell whether the dialect of the document has an operation of this name."""
        if self.document.provisional and name in FINAL_ONLY:
            return False
        return name in self.library

    def lookup(self, name: str, caller: Fragment | None) -> Fragment | None:
        """Return the declaration of the operation `name`, or None if nothing declares it.

        `caller` is the fragment that calls the operation, or None if the graph calls it.
        """
        is_called_by_library = caller is not None and caller.source is not self.document.source
        if is_called_by_library:
            return standard().get(name)
        return self._declarations.get(name)

    def undeclared(self) -> set[str]:
        """Return the names of operations that the document calls but nothing declares."""
        assignments = list(self.document.graph.body)
        for fragment in self.document.fragments:
            assignments += fragment.body or ()
        calls = invocations(assignment.value for assignment in assignments)
        return {node.operation for node in calls if node.operation not in self._declarations}

    def form(self, fragment: Fragment, invocation: Invocation) -> Form:
        """Return the form of an invocation of a fragment; see `form_of`.

        The form is computed only once for all invocations with equal names of arguments.
        """
        argument_names = tuple([argument.name for argument in invocation.arguments])
        key = (id(fragment), argument_names)
        form = self._forms.get(key)
        if form is None:
            self.meter.spend(BINDING_STEPS * len(fragment.parameters), self.document.source.name)
            form = form_of(fragment, invocation)
            self._forms[key] = form
        return form

    def similar(self, name: str) -> str:
        """Return a hint with operations whose names are similar to `name`, or ""."""
        return did_you_mean(name, self._fragments, self.library, meter=self.meter, cutoff=0.7)
