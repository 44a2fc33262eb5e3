"""The table of OpenVINO's layers, which `nnef-jax formats` and the generated pages show."""

from __future__ import annotations

from collections.abc import Iterable

from nnef_jax.flattening.operators.table import OperatorEntry, entries_of
from nnef_jax.formats.openvino.document import FIRST_OF_OPSETS
from nnef_jax.formats.openvino.layer_site import LayerSite
from nnef_jax.formats.openvino.layers import OPERATORS
from nnef_jax.formats.openvino.layers.registry import LEGACY

_STRUCTURE = (
    OperatorEntry("Const", role="structure"),
    OperatorEntry("Input", until=LEGACY, role="structure"),
    OperatorEntry("Parameter", since=FIRST_OF_OPSETS, role="structure"),
    OperatorEntry("Result", since=FIRST_OF_OPSETS, role="structure"),
)


def entries() -> Iterable[OperatorEntry]:
    """Return the rows of the table, sorted by the names of the layers.

    The versions in a row are versions of the document.
    """
    entries = [*entries_of(OPERATORS, LayerSite), *_STRUCTURE]
    return sorted(entries, key=lambda entry: (entry.name.lower(), entry.since))
