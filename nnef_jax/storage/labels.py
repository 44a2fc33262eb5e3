"""Maps the label of a variable to the member that holds its data (spec 5.1)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from fnmatch import fnmatchcase

from nnef_jax.errors import ArchiveError

# The pattern matches a comment or a string. A string without an end quote ends at the end of its
# line, so that no text is scanned twice.
_QUOTED = re.compile(r"""#[^\n]*|'((?:[^'\\\n]|\\.)*+)'?|"((?:[^"\\\n]|\\.)*+)"?""")
_DRIVE = re.compile(r"[A-Za-z]:(/|$)")


def split_name(name: str) -> tuple[str, ...] | None:
    """Split a member name into its parts: './a//b' becomes ('a', 'b').

    Returns None for an absolute name, and for a name with '..'.
    """
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    is_absolute = name.startswith("/")
    return None if is_absolute or ".." in parts else parts


def parent_folders(name: str) -> set[str]:
    """Return the folders that contain a member. For 'a/b/c.dat' these are 'a' and 'a/b'."""
    return {name[:end] for end, character in enumerate(name) if character == "/"}


def member_of(label: str, suffix: str = ".dat") -> str:
    """Return the member that holds the data of a label: 'conv1/filter.dat' for 'conv1/filter'.

    One leading '/' is dropped, as in the Khronos tools. Raises ArchiveError for a label that is not
    the name of a file in the container, such as '../a'. The error does not name a line of the
    document.
    """
    reason = refusal(label)
    if reason:
        raise ArchiveError(
            f"label {label!r} {reason}",
            hint="a label names a file in the container, as 'conv1/filter'",
        )
    parts = split_name(label.removeprefix("/"))
    assert parts
    return "/".join(parts) + suffix


def quoted_members(text: str) -> set[str]:
    """Return the names of the members for all labels in the text of a document.

    Every string in `text` that is a valid label is taken as a label. The document need not be
    valid.
    """
    members: set[str] = set()
    for match in _QUOTED.finditer(text):
        in_single_quotes, in_double_quotes = match.groups()
        # For a comment both groups are None, and the string is empty. An empty string is no label.
        string = in_single_quotes or in_double_quotes or ""
        # In a string, a backslash and a character stand for the character: \" stands for ".
        label = re.sub(r"\\(.)", r"\1", string).lstrip("/")
        if not refusal(label):
            members.add(member_of(label))
    return members


def refusal(label: str) -> str:
    """Return the reason why a label or member name is invalid, or '' if it is valid.

    The text is for the sentence "label X ...", as in "label X is empty".
    """
    path = label.removeprefix("/")
    if not path:
        return "is empty"
    if "\0" in path:
        return "holds a NUL character"
    if not path.isprintable():
        # `isprintable` is fast, but it is also False for spaces other than ' ', which are allowed.
        # The categories of the characters distinguish such spaces from control characters.
        categories = {unicodedata.category(character) for character in path}
        if "Cc" in categories or "Cs" in categories:
            return "holds a control character"
    if "\\" in path:
        return "holds a backslash: its parts are separated by '/'"
    # 'w:' and 'w:/a' start with the letter of a drive. 'w:0' is a name that other frameworks give
    # to tensors, and is allowed.
    if _DRIVE.match(path):
        return "starts with a drive letter"
    if path.startswith("/"):
        return "is an absolute path"
    parts = split_name(path)
    if parts is None:
        return "leads outside of the container by '..'"
    if not parts or path.endswith(("/", "/.")):
        return "names a folder, not a file"
    return ""


def is_graph(name: str, graphs: Sequence[str]) -> bool:
    """Tell whether a member's name matches one of the names or patterns of graphs."""
    return any(fnmatchcase(name, graph) for graph in graphs)
