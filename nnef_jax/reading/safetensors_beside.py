"""Reads the weights of an NNEF network from a safetensors file instead of its tensor files."""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from typing import Any

from nnef_jax.errors import InputError
from nnef_jax.formats import FORMATS
from nnef_jax.limits import Meter
from nnef_jax.storage.archive import Archive
from nnef_jax.storage.labels import member_of
from nnef_jax.storage.tensorfile import encode_tensor
from nnef_jax.wording.similar import listed


def with_safetensors(archive: Archive, meter: Meter) -> tuple[Archive, Collection[str]]:
    """Return an archive with tensors from the file `archive.weights`. Also return their labels.
    Raises InputError if the file is not a safetensors file, and DataError if the file is damaged.
    """
    name, data = archive.weights or ("", memoryview(b""))
    # After 8 bytes for the size of the header, the header in JSON begins.
    is_safetensors = bytes(data[8:10]) == b'{"'
    if not is_safetensors:
        raise InputError(
            f"weights= does not go with this network: '{name}' is no safetensors file",
            hint="an NNEF network takes a safetensors file that has its weights by label",
        )
    # The reader is in tract's dialect, whose archives have safetensors members.
    json_members = import_module(f"{FORMATS['tract']}.json_members")
    tensors = json_members.SafetensorsFile(data, name, meter)
    container: Any = _Beside(archive, tensors, name)
    return Archive(container, archive.name, meter), tensors.labels


def require_labels(labels: Collection[str], variables: Collection[str]) -> None:
    """Raise InputError if the file of weights has labels that no variable of the network has.

    `variables` are the labels of the variables. In the file, a label may lack the slash at its
    beginning.
    """
    without_slashes = [label.removeprefix("/") for label in variables]
    unknown = sorted(set(labels) - {*variables, *without_slashes})
    if unknown:
        message = f"weights= has {listed(unknown)}, but the network has no such variable"
        raise InputError(message, hint="names in the file must be labels of model.params")


class _Beside:
    """A container whose tensor members come from a safetensors file.

    All other members come from `archive`. `tensors` is the file, and `name` is its name.
    """

    def __init__(self, archive: Archive, tensors: Any, name: str) -> None:
        self._archive = archive
        self._tensors = tensors
        self._name = name
        self._labels: dict[str, str] = {member_of(label): label for label in tensors.labels}

    def names(self) -> list[str]:
        return sorted({*self._archive.names(), *self._labels})

    def exists(self, name: str) -> bool:
        return name in self._labels or self._archive.exists(name)

    def location(self, name: str) -> str:
        return self._name if name in self._labels else self._archive.location(name)

    def read(self, name: str) -> memoryview:
        """Return the bytes of a member. A safetensors tensor becomes an NNEF tensor file."""
        if name not in self._labels:
            return self._archive.open_tensor(name)
        tensor = self._tensors.get(self._labels[name])
        return memoryview(b"".join(encode_tensor(tensor.array)))
