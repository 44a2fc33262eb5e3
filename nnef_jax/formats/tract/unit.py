"""A network in an archive, and the members that it reads: tensors, JSON and other networks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import chain
from typing import Any

import jax.numpy as jnp
from numpy.typing import NDArray

from nnef_jax.errors import ArchiveError, LimitError
from nnef_jax.formats.syntax.declared_tensors import convert, without_member
from nnef_jax.formats.syntax.frontend import GRAPH, QUANTIZATION
from nnef_jax.formats.syntax.quantizer import Quantizer
from nnef_jax.formats.tract.document import TractDocument
from nnef_jax.formats.tract.json_members import SUFFIX, Json, SafetensorsFile, read_json, value_at
from nnef_jax.formats.tract.parser import parse
from nnef_jax.formats.tract.quantization import read_quantization
from nnef_jax.formats.tract.tensor_file import StoredTensor, read_tensor_file
from nnef_jax.limits import Meter
from nnef_jax.storage.archive import Archive, open_archive
from nnef_jax.storage.labels import member_of

_ARCHIVES = (".nnef.tgz", ".nnef.tar")
_MAX_DEPTH = 16  # the deepest nesting of networks; an archive could contain itself
# The hint of errors for numbers that need 64 bits.
_X64_HINT = "enable jax's x64 mode, jax.config.update('jax_enable_x64', True), and load again"


class Unit:
    """A network of an archive: its document and its data. It may contain other networks.

    Members of the archive are read when they are first used, and are kept after the archive is
    closed. As in tract, the name of a member is a label without leading slashes, followed by a
    suffix, such as LABEL.dat. `labels` is a prefix of all labels of this network. It is "" unless
    the network is within another network.
    """

    def __init__(self, archive: Archive, meter: Meter, labels: str = "", depth: int = 0) -> None:
        self.labels = labels
        self._archive = archive
        self._meter = meter
        self._depth = depth
        self._tensors: dict[str, StoredTensor] = {}
        self._documents: dict[str, Any] = {}
        self._nested: dict[str, Unit] = {}

    def __getstate__(self) -> dict[str, Any]:
        # A pickled unit has no safetensors files, whose tensors are views of the bytes of files.
        state = {**self.__dict__}
        state.pop("_safetensors", None)
        return state

    def content(self) -> Iterator[object]:
        """Yield the texts and the tensors that were read. The graphs depend on nothing else."""
        yield from chain.from_iterable(sorted(self._archive.texts.items()))
        for label, tensor in sorted(self._tensors.items()):
            yield from (label, *tensor.content())
        for label, unit in sorted(self._nested.items()):
            yield from (label, *unit.content())

    def texts(self) -> dict[str, bytes]:
        """Return a dict from names of members of the archive to the texts that were read.

        For a network within this network, the names begin with the name of the inner network's
        folder, such as "encoder/graph.nnef".
        """
        texts = {name: text.encode() for name, text in self._archive.texts.items()}
        for label, unit in self._nested.items():
            folder = _member(label, "")
            texts |= {f"{folder}/{name}": text for name, text in unit.texts().items()}
        return texts

    @cached_property
    def document(self) -> TractDocument:
        """Return the document of the network, which is parsed when it is first used."""
        return parse(self._archive.read_text(GRAPH), self._meter)

    @cached_property
    def quantizers(self) -> Mapping[str, Quantizer]:
        """Return a dict from names of tensors to their entries in the network's graph.quant."""
        if not self._archive.exists(QUANTIZATION):
            return {}
        source = self._archive.read_text(QUANTIZATION)
        return read_quantization(source, self.document.names, self._meter)

    def get(self, label: str) -> StoredTensor:
        """Return the tensor in LABEL.dat or in a safetensors file.

        Raises ArchiveError if there is no such tensor.
        """
        if label not in self._tensors:
            self._tensors[label] = self._read(label)
        return self._tensors[label]

    def _read(self, label: str) -> StoredTensor:
        """Read the tensor in LABEL.dat or in a safetensors file."""
        self._meter.spend(len(label), "the label of a variable")
        member = _member(label, ".dat")
        if self._archive.exists(member):
            return read_tensor_file(self._archive.open_tensor(member), member, self._meter)
        # A safetensors file may have the label with or without leading slashes.
        for name in (label, label.lstrip("/")):
            if name in self._safetensors:
                return self._safetensors[name].get(name)
        raise without_member(self._archive, member, label)

    @cached_property
    def _safetensors(self) -> dict[str, SafetensorsFile]:
        """Map each label to the first safetensors file that has a tensor with this label."""
        file_by_label: dict[str, SafetensorsFile] = {}
        for name in self._archive.names():
            if name.endswith(SUFFIX):
                file = SafetensorsFile(self._archive.open_tensor(name), name, self._meter)
                for label in file.labels:
                    file_by_label.setdefault(label, file)
        return file_by_label

    def json(self, label: str, key: str) -> Json:
        """Return the value at the path `key` in the file LABEL.json.

        Raises ArchiveError if there is no such file.
        """
        self._meter.spend(len(label) + len(key), "the label of a resource")
        member = _member(label, ".json")
        if member not in self._documents:
            self._documents[member] = read_json(self._archive.read_text(member), self._meter)
        return value_at(self._documents[member], key, member, self._meter)

    def nested(self, label: str) -> Unit:
        """Return the network in LABEL.nnef.tgz, LABEL.nnef.tar or the folder LABEL.

        Raises ArchiveError if there is no such network, and LimitError if networks are nested too
        deeply.
        """
        if label not in self._nested:
            self._meter.spend(len(label), "the label of a network")
            if self._depth == _MAX_DEPTH:
                message = f"{self._archive.name}: networks are nested more than {_MAX_DEPTH} deep"
                raise LimitError(message)
            archive = self._open(label)
            labels = f"{self.labels}{label}/"
            self._nested[label] = Unit(archive, self._meter, labels, self._depth + 1)
        return self._nested[label]

    def _open(self, label: str) -> Archive:
        """Open the archive of another network, which is a member or folder of this archive."""
        outer = self._archive
        names = [_member(label, suffix) for suffix in _ARCHIVES]
        for name in names:
            if outer.exists(name):
                data = outer.open_tensor(name)
                return open_archive(data, self._meter, name=outer.location(name))
        folder = _member(label, "")
        if outer.exists(f"{folder}/{GRAPH}"):
            return outer.subfolder(folder)
        names.append(f"{folder}/{GRAPH}")
        raise ArchiveError(f"{outer.name} has no network '{label}': no {', no '.join(names)}")


def as_dtype(array: NDArray[Any], dtype: str, member: str, meter: Meter) -> NDArray[Any]:
    """Convert stored data to a dtype. `member` is the name of the file in errors.

    Raises DataError if an item is beyond the range of the dtype.
    """
    hint = _X64_HINT if array.dtype.itemsize == 8 else ""
    return convert(array, jnp.dtype(dtype), member, meter, hint)


def _member(label: str, suffix: str) -> str:
    """Return the name of the archive's member for a label, such as "a/b.dat" for "/a/b".

    If `suffix` is "", return the name of the label's folder.
    """
    return member_of(label.lstrip("/"), suffix)
