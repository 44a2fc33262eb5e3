"""What the site has besides docs/: pages of the repository's root, a reference, a gallery."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe
from markdown.extensions.toc import slugify
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}


def on_files(files: Files, config: Any) -> None:
    """Add the pages, with links that lead from docs/."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        text = text.replace("](docs/", "](")
        for other, target in PAGES.items():
            text = text.replace(f"]({other}", f"]({target}")
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, "analysis_api.md", content=_analysis()))
    files.append(File.generated(config, "gallery.md", content=_gallery()))


def _analysis() -> str:
    """Return the reference of `nnef_jax.analysis`: its names by the modules that they live in."""
    folder = ROOT / "nnef_jax" / "analysis"
    homes: dict[str, list[str]] = {}
    table = (folder / "__init__.py").read_text(encoding="utf-8")
    for name, home in re.findall(r'^    "(\w+)": "(\w+)",$', table, flags=re.M):
        homes.setdefault(home, []).append(name)
    parts = ["# Python: nnef_jax.analysis"]
    for home in sorted(homes, key=lambda home: (home == "results", home)):
        parts.append(f"## {home.replace('_', ' ').capitalize()}")
        parts += [f"::: nnef_jax.analysis.{name}" for name in sorted(homes[home], key=str.swapcase)]
    return "\n\n".join(parts)


def _gallery() -> str:
    """Return all pictures of the pages, each with a link to the section that it is in."""
    cards: list[str] = []
    for page in ("tutorial", "examples", "view", "analysis", "diagnosis", "commands", "openvx"):
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        section = ""
        for heading, told, path in re.findall(
            r"^##? (.*)$|^!\[(.*?)\]\((pictures/.*?)\)$", text, flags=re.M
        ):
            section = heading or section
            if path:
                place = f"{page}.md#{slugify(section, '-')}"
                cards.append(f"[![{told}]({path})]({place})\n\n[{section}]({place}): {told}")
    inside = "\n\n".join(f'<figure markdown="block">\n{card}\n</figure>' for card in cards)
    return f'# Gallery\n\n<div class="gallery" markdown="block">\n{inside}\n</div>\n'


class Doctests(griffe.Extension):
    """Fences the lines of docstrings that begin with `>>>`, which Markdown takes for quotes."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence them in what has a docstring."""
        if obj.docstring is not None:
            text = obj.docstring.value
            obj.docstring.value = re.sub(
                r"^(>>> .+(?:\n\S.*)*)", r"```pycon\n\1\n```", text, flags=re.M
            )
