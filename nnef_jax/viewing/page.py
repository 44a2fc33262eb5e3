"""Implements `nnef_jax.view`: a network as one HTML file that requests nothing from a server."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

from nnef_jax import __version__
from nnef_jax.calls.arguments import has_values
from nnef_jax.errors import InputError
from nnef_jax.model import Model
from nnef_jax.options import require_flags, require_path
from nnef_jax.reading.network import Network
from nnef_jax.reading.read import Source, read
from nnef_jax.storage import files as storage
from nnef_jax.storage import protected_files
from nnef_jax.viewing.data import page_data
from nnef_jax.viewing.measures import fields_by_name
from nnef_jax.wording.similar import listed
from nnef_jax.workings import network_of, stored_or_types

if TYPE_CHECKING:
    from nnef_jax.analysis.comparison import Comparison
    from nnef_jax.measure.profiling import Profile

_SCRIPTS = ("graph", "layout", "draw", "panel", "values", "export", "app", "search", "start")


@dataclass(frozen=True, slots=True)
class Page:
    """A page that shows a network. A notebook shows the page as the value of a cell."""

    data: Mapping[str, Any]  # This is an object for JSON, which docs/view.md describes.

    @property
    def html(self) -> str:
        """Return the page as HTML."""
        return _html(self.data)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the page to a file.

        If `overwrite` is False, an existing file raises FileExistsError.
        """
        require_path("path", path)
        require_flags(overwrite=overwrite)
        with storage.replacing(os.fsdecode(path), overwrite=overwrite) as file:
            file.write(self.html.encode())

    def _repr_html_(self) -> str:
        page = html.escape(self.html)
        size = 'width="100%" height="620" style="border: 0; border-radius: 12px"'
        return f'<iframe srcdoc="{page}" {size} sandbox="allow-scripts allow-downloads"></iframe>'


def view(
    network: Model | Source,
    output: str | os.PathLike[str] | None = None,
    *,
    profile: Profile | Mapping[str, object] | None = None,
    comparison: Comparison | Mapping[str, object] | None = None,
    overwrite: bool = False,
) -> Page:
    """Show the graph of a network as a page, with shapes, attributes, weights and work.

    >>> nnef_jax.view("net.nnef.tgz", "net.html")
    >>> nnef_jax.view(model)                         # in a notebook

    Args:
        network: a model, or a source that `load` reads.
        output: the file to write, an HTML page that needs no other file, and no connection.
        profile: a result of `nnef_jax.profile`, or a dict `{"operations": [{"name": ..., "seconds":
            ...}, ...]}`. The page colours operations by these times.
        comparison: a result of `nnef_jax.analysis.compare`, or the dict from `to_dict()` of the
            result. The page colours operations by the errors in the comparison.
        overwrite: whether an existing file is replaced; otherwise it raises FileExistsError. The
            files of the network are never replaced.

    Raises InputError if `profile` or `comparison` has another form, or names no operation of the
    network. Raises NnefError for a broken network.
    """
    require_flags(overwrite=overwrite)
    if output is not None:
        require_path("output", output)
    with protected_files.protecting_inputs():
        page = page_of(network, profile=profile, comparison=comparison)
        if output is not None:
            page.save(output, overwrite=overwrite)
    return page


def page_of(
    source: Model | Network | Source, *, profile: object = None, comparison: object = None
) -> Page:
    """Return the page of a model, a network, or a source that `load` reads.

    The docstring of `view` explains `profile` and `comparison`.
    """
    fields = fields_by_name(profile, comparison)
    if isinstance(source, Model):
        network = network_of(source)
        arrays = stored_or_types(source)
    else:
        network = source if isinstance(source, Network) else read(source, outline=True)
        arrays = network.data

    def readable_array(label: str) -> Any:
        """Return the array of a parameter, or None if only its type is known."""
        array = arrays.get(label)
        return array if has_values(array) else None

    data = page_data(network, readable_array, fields)
    if fields and not data["coloured_by"]:
        names = listed([name[:60] for name in fields])
        message = f"the profile or comparison names no operation of '{network.graph.name:.60}'"
        hint = "it belongs to another network, or to this one loaded with other options"
        raise InputError(f"{message}, it has {names}", hint=hint)
    return Page(data)


@cache
def _asset(name: str) -> str:
    """Return the text of a file in the folder `assets`."""
    return files("nnef_jax.viewing").joinpath("assets", name).read_text(encoding="utf-8")


def _html(data: Mapping[str, Any]) -> str:
    """Return the page for the data of a network as HTML, with its styles and scripts."""
    dagre = _asset("dagre.min.js").replace("//# sourceMappingURL=dagre.min.js.map", "")
    notice = f"/*! @dagrejs/dagre 3.1.3\n{_asset('dagre.LICENSE')}*/\n"
    script = "\n".join(_asset(f"{name}.js") for name in _SCRIPTS)
    parts = {
        "style": _asset("style.css"),
        "dagre": notice + dagre,
        "script": f'"use strict";\n(() => {{\n{script}\n}})();',
    }
    hashes = {name: f"'sha256-{_sha256(text)}'" for name, text in parts.items()}
    policy = (
        "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"style-src {hashes['style']}; script-src {hashes['dagre']} {hashes['script']}"
    )
    # The JSON is inside a script element. A name from the network might contain "</script>", and
    # would end the element. The characters <, > and & are therefore written as escapes.
    json_text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        json_text = json_text.replace(character, f"\\u{ord(character):04x}")
    title = "".join([character if character.isprintable() else " " for character in data["name"]])
    template = Template(_asset("page.html"))
    return template.substitute(
        parts, data=json_text, policy=policy, title=html.escape(title), version=__version__
    )


def _sha256(text: str) -> str:
    """Return the sha256 of a text. The hash is in base64, as in a content security policy."""
    digest = hashlib.sha256(text.encode()).digest()
    return base64.b64encode(digest).decode()
