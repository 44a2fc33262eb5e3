"""What a graph of tract's dialect reads from its archive, by label."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnef_jax.errors import ArchiveError, DataError, LimitError, NnefError, UnsupportedError
from nnef_jax.formats.tract.unit import Unit, as_dtype
from nnef_jax.limits import Limits, Meter
from nnef_jax.storage.archive import open_archive
from tests.fuzz.draw import changed_bytes
from tests.tract_files import GRAPH, floats, tar

NETWORK = b"version 1.0;\ngraph net( x ) -> ( y ) { x = external(shape = [1]); y = relu(x); }"
ENTRY = b"'y': linear_quantize(min = 0.0, max = 1.0, bits = 8);"


def resources(members: dict[str, bytes], **limits: int) -> Unit:
    bounds = Meter(Limits(**limits))
    return Unit(open_archive(tar({"graph.nnef": GRAPH} | members), bounds), bounds)


# Labels

LABELS = {
    "w": "w.dat",
    "a.b.c": "a.b.c.dat",
    "layer/0/weight": "layer/0/weight.dat",
    "/d2/d2.0/Conv.bias": "d2/d2.0/Conv.bias.dat",
    "//Add": "Add.dat",
    "./x": "x.dat",
    "onnx::Conv_118": "onnx::Conv_118.dat",
    "w:0": "w:0.dat",
    "StatefulPartitionedCall/a;b;c": "StatefulPartitionedCall/a;b;c.dat",
    "with spaces, and größe": "with spaces, and größe.dat",
    "a=b&c*[0]{1}(2)'\"$": "a=b&c*[0]{1}(2)'\"$.dat",
    "-rf": "-rf.dat",
    "~/x": "~/x.dat",
    "graph.nnef": "graph.nnef.dat",
}
HOSTILE = [
    "",
    "/",
    "..",
    "../w",
    "/../w",
    "//../w",
    "a/../../w",
    "a\0b",
    "a\nb",
    "C:/w",
    "a\\..\\w",
]


@pytest.mark.parametrize("label", LABELS)
def test_label(label: str) -> None:
    for name in (LABELS[label], f"./{LABELS[label]}"):
        assert resources({name: floats(1, 2)}).get(label).array.tolist() == [1, 2]


@pytest.mark.parametrize("label", [name for name in LABELS if '"' not in name])
def test_label_in_a_folder(label: str, tmp_path: Path) -> None:
    path = tmp_path / LABELS[label]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(floats(1, 2))
    (tmp_path / "graph.nnef").write_bytes(GRAPH)
    with open_archive(tmp_path) as archive:
        assert Unit(archive, Meter()).get(label).array.tolist() == [1, 2]


@pytest.mark.parametrize("label", HOSTILE)
def test_label_that_names_no_member(label: str, tmp_path: Path) -> None:
    (tmp_path / "w.dat").write_bytes(floats(1))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "graph.nnef").write_bytes(GRAPH)
    with open_archive(folder) as archive:
        data = Unit(archive, Meter())
        asked: list[Callable[[], Any]] = [
            lambda: data.get(label), lambda: data.json(label, "a"), lambda: data.nested(label)
        ]  # fmt: skip
        for ask in asked:
            with pytest.raises(ArchiveError, match="label '"):
                ask()


# Tensors


def test_missing_tensor() -> None:
    message = "has no member 'a/w.dat' for the variable 'a/w'\n.*stored in LABEL.dat"
    with pytest.raises(ArchiveError, match=message):
        resources({}).get("a/w")


def test_tensors_are_read_once_and_kept() -> None:
    with open_archive(tar({"graph.nnef": NETWORK, "w.dat": floats(1), "v.dat": b""})) as archive:
        data = Unit(archive, Meter())
        stored = data.get("w")
        assert data.document.source.text == NETWORK.decode() and not data.quantizers
    assert data.get("w") is stored
    assert data.document.source.text == NETWORK.decode()
    with pytest.raises(ValueError, match="is closed"):
        data.get("v")


def test_broken_tensor_names_its_member() -> None:
    with pytest.raises(DataError, match=r"^a/w.dat: is empty"):
        resources({"a/w.dat": b""}).get("a/w")


def test_limits_hold() -> None:
    with pytest.raises(LimitError):
        resources({"graph.nnef": NETWORK, "graph.quant": b"#" * 1000}, steps=999).quantizers  # noqa: B018


def test_graph_quant() -> None:
    assert resources({"graph.nnef": NETWORK, "graph.quant": b"# nothing"}).quantizers == {}
    assert resources({"graph.nnef": NETWORK, "graph.quant": ENTRY}).quantizers.keys() == {"y"}


# safetensors


def safetensors_file(entries: dict[str, Any], data: bytes = b"") -> bytes:
    """A file of the format by its description: length of the header, header in JSON, data."""
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


SAFE = safetensors_file(
    {
        "__metadata__": {"format": "pt"},
        "a.f32": entry("F32", [2, 1], 0, 8),
        "a.f16": entry("F16", [2], 8, 12),
        "a.bf16": entry("BF16", [2], 12, 16),
        "/i64": entry("I64", [], 16, 24),
        "u8": entry("U8", [2], 24, 26),
        "bool": entry("BOOL", [3], 26, 29),
        "empty": entry("I8", [0, 4], 29, 29),
        "f8": entry("F8_E4M3", [1], 29, 30),
    },
    struct.pack("<ff", 1.5, -2)
    + struct.pack("<ee", 0.5, 3)
    + struct.pack("<HH", 0x3FC0, 0xC000)
    + struct.pack("<q", -(2**40))
    + bytes([7, 255, 0, 1, 1, 0]),
)
# Label, dtype, values.
SAFE_TENSORS = [
    ("a.f32", "float32", [[1.5], [-2]]),
    ("a.f16", "float16", [0.5, 3]),
    ("a.bf16", "bfloat16", [1.5, -2]),
    ("/i64", "int64", -(2**40)),
    ("u8", "uint8", [7, 255]),
    ("/u8", "uint8", [7, 255]),
    ("bool", "bool", [False, True, True]),
    ("empty", "int8", []),
]


@pytest.mark.parametrize(("label", "dtype", "values"), SAFE_TENSORS)
def test_safetensors(label: str, dtype: str, values: Any) -> None:
    data = resources({"weights/model.safetensors": SAFE, "a.bias.dat": floats(1)})
    stored = data.get(label)
    assert stored.array.dtype.name == dtype
    assert stored.member == f"weights/model.safetensors: '{'u8' if label == '/u8' else label}'"
    assert stored.array.tolist() == values
    assert not stored.array.flags.writeable
    assert (stored.codes is not None) == ("int" in dtype)
    assert data.get("a.bias").array.tolist() == [1]


def test_a_tensor_file_comes_before_safetensors() -> None:
    assert resources({"a.safetensors": b"broken", "w.dat": floats(1)}).get("w").member == "w.dat"


def test_label_that_is_in_no_safetensors_member() -> None:
    with pytest.raises(ArchiveError, match=r"has no member 'w\.dat'"):
        resources({"a.safetensors": SAFE, "b.safetensors": SAFE}).get("w")


def test_numbers_of_safetensors_that_are_not_supported() -> None:
    with pytest.raises(UnsupportedError, match=r"a.safetensors: 'f8' holds numbers of .* F8_E4M3"):
        resources({"a.safetensors": SAFE}).get("f8")


def test_tensors_of_safetensors_are_views() -> None:
    data = resources({"a.safetensors": SAFE}, expanded_bytes=0)
    for label in ("a.f32", "a.f16", "a.bf16", "u8"):
        assert data.get(label).array.base is not None


def test_the_header_of_safetensors_is_paid_for() -> None:
    with pytest.raises(LimitError, match=r"a\.safetensors takes more than 600 steps"):
        resources({"a.safetensors": SAFE}, steps=600).get("w")


HOSTILE_SAFE = {
    "nothing": b"",
    "no header": b"1234567",
    "huge header": struct.pack("<Q", 2**63),
    "header beyond the end": struct.pack("<Q", 1000) + b"{}",
    "not JSON": struct.pack("<Q", 8) + b"{]{]{]{]",
    "nested": struct.pack("<Q", 100_000) + b"[" * 100_000,
    "not UTF-8": struct.pack("<Q", 4) + b'{"\xff}',
    "offsets beyond the end": safetensors_file({"w": entry("F32", [2], 0, 8)}, bytes(4)),
    "offsets swapped": safetensors_file({"w": entry("F32", [1], 4, 0)}, bytes(4)),
    "hole": safetensors_file({"w": entry("F32", [1], 4, 8)}, bytes(8)),
    "size": safetensors_file({"w": entry("F32", [2], 0, 4)}, bytes(4)),
    "overflow": safetensors_file({"w": entry("F32", [2**40, 2**40], 0, 4)}, bytes(4)),
    "dtype": safetensors_file({"w": entry("F33", [1], 0, 4)}, bytes(4)),
    "negative extent": safetensors_file({"w": entry("F32", [-1], 0, 4)}, bytes(4)),
    "empty that no array can have": safetensors_file(
        {"w": entry("F32", [0, 2**40, 2**40], 0, 0)}
    ),
    "rank that no array can have": safetensors_file({"w": entry("F32", [1] * 100, 0, 4)}, bytes(4)),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_SAFE)
def test_broken_safetensors(name: str) -> None:
    with pytest.raises(NnefError, match=r"^a.safetensors:"):
        resources({"a.safetensors": HOSTILE_SAFE[name]}).get("w")


def test_mutated_safetensors_end_in_an_error_or_a_tensor() -> None:
    chance = random.Random(0)
    for _ in range(100):
        mutated = changed_bytes(SAFE, chance)
        found = resources({"a.safetensors": mutated})
        for label, *_ in SAFE_TENSORS:
            try:
                assert found.get(label).array.nbytes <= len(mutated)
            except NnefError as error:
                assert error.message


# JSON

DOCUMENT = {
    "name": "net",
    "sizes": [3, 4.5, True],
    "others-info": {"weights": [[1, 2], [3, 4]], "0": "zero"},
    "nothing": None,
    "holes": [1, [None]],
}
DATA = {"config/net.json": json.dumps(DOCUMENT).encode()}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("$.name", "net"),
        ("name", "net"),
        ("$.sizes", [3, 4.5, True]),
        ("$.sizes[0]", 3),
        ("sizes.1", 4.5),
        ("sizes.2", True),
        ("$.others-info.weights[1][0]", 3),
        ("others-info.weights.0.1", 2),
        ("others-info.weights", [[1, 2], [3, 4]]),
        ("others-info.0", "zero"),
    ],
)
def test_json_value(key: str, value: Any) -> None:
    data = resources(DATA)
    assert data.json("config/net", key) == value
    assert data.json("/config/net", key) == value


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("nam", "nothing at 'nam': there is no 'nam'\n.*did you mean 'name'"),
        ("sizes.3", "there is no '3'\n.*has 3 items"),
        ("sizes[99999999999999999999]", "there is no '9+'"),
        ("sizes.-1", "there is no '-1'"),
        ("name.0", "has no parts"),
        ("$", "has an object at"),
        ("others-info", "has an object at"),
        ("nothing", "has null at"),
        ("holes", "has null inside the list at"),
        ("sizes[0", "is not a key path"),
        ("a..b", "nothing at|not a key path"),
        ("sizes.", "is not a key path"),
    ],
)
def test_json_value_that_is_not_there(key: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        resources(DATA).json("config/net", key)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (b"", DataError, "net.json:1:1: not JSON"),
        (b'{"a": 1,\n  b}', DataError, "net.json:2:3: not JSON"),
        (b"9" * 5000, DataError, "net.json: .*digits"),
        (b"[" * 100_000, LimitError, "nested more than"),
        (b'{"a":' * 201 + b"0" + b"}" * 201, LimitError, "nested more than 200 deep"),
        (b"\xff", NnefError, "not UTF-8"),
    ],
)
def test_broken_json(text: bytes, error: type[NnefError], message: str) -> None:
    with pytest.raises(error, match=message):
        resources({"net.json": text}).json("net", "a")


def test_json_is_bounded_and_kept() -> None:
    with pytest.raises(LimitError, match=r"net\.json takes more than 100 steps"):
        resources(DATA, steps=100).json("config/net", "name")
    with pytest.raises(ArchiveError, match=r"no member 'net\.json'"):
        resources({}).json("net", "a")
    with open_archive(tar({"graph.nnef": GRAPH} | DATA)) as archive:
        data = Unit(archive, Meter())
        data.json("config/net", "name")
    assert data.json("config/net", "sizes[0]") == 3


@given(st.text(alphabet="ab01.[]$- ", max_size=12))
def test_any_key_ends_in_an_error_or_a_value(key: str) -> None:
    document = {"a": [1, {"b": [0]}], "b": {"0": "x", "1": [[2]]}, "": 3}
    try:
        resources({"net.json": json.dumps(document).encode()}).json("net", key)
    except NnefError as error:
        assert error.message


# Networks in networks

INNER = {"graph.nnef": NETWORK + b"# inner", "a/w.dat": floats(5), "graph.quant": ENTRY}


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("suffix", [".nnef.tgz", ".nnef.tar", "folder"])
def test_submodel(mode: str, suffix: str) -> None:
    if suffix == "folder":
        members = {f"parts/sub/{name}": content for name, content in INNER.items()}
    else:
        members = {f"parts/sub{suffix}": tar(INNER, mode)}
    data = resources({"a/w.dat": floats(1), **members})
    inner = data.nested("parts/sub")
    assert data.nested("parts/sub") is inner
    assert inner.document.source.text.endswith("# inner")
    assert inner.document.source.name.startswith("the archive/parts/sub")
    assert inner.quantizers.keys() == {"y"}
    assert inner.get("a/w").array.tolist() == [5]
    assert data.get("a/w").array.tolist() == [1]
    for label in ("../w", "../../a/w", "/../../a/w"):
        with pytest.raises(ArchiveError, match="label '"):
            inner.get(label)
    with pytest.raises(ArchiveError, match=r"has no member 'graph.nnef.dat'"):
        inner.get("graph.nnef")


def test_submodel_of_a_folder(tmp_path: Path) -> None:
    inner = tmp_path / "sub"
    (inner / "a").mkdir(parents=True)
    for name, content in INNER.items():
        (inner / name).write_bytes(content)
    (tmp_path / "graph.nnef").write_bytes(GRAPH)
    (inner / "loop").symlink_to(tmp_path)
    with open_archive(tmp_path) as archive:
        data = Unit(archive, Meter()).nested("sub")
        assert data.get("a/w").array.tolist() == [5]
        with pytest.raises(LimitError, match="nested more than 16 deep"):
            while True:
                data = data.nested("loop/sub")


def test_networks_are_nested_to_a_depth() -> None:
    content = tar({"graph.nnef": GRAPH})
    for _ in range(20):
        content = tar({"graph.nnef": GRAPH, "m.nnef.tgz": content})
    data = Unit(open_archive(content), Meter())
    with pytest.raises(LimitError, match="nested more than 16 deep"):
        for _ in range(20):
            data = data.nested("m")


def test_missing_submodel() -> None:
    message = r"no network 'm': no m.nnef.tgz, no m.nnef.tar, no m/graph.nnef"
    with pytest.raises(ArchiveError, match=message):
        resources({"m/w.dat": b""}).nested("m")
    with pytest.raises(ArchiveError, match=r"archive/m.nnef.tgz has no graph.nnef"):
        resources({"m.nnef.tgz": tar({"w.dat": b""})}).nested("m")
    with pytest.raises(ArchiveError, match=r"archive/m.nnef.tar is not a tar archive"):
        resources({"m.nnef.tar": b"x" * 1000}).nested("m")


# Dtypes


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.array([1.5, -2], np.float64), "float32"),
        (np.array([1.5, -2], np.float32), "bfloat16"),
        (np.array([1.5, -2], np.float32), "float16"),
        (np.array([1.5, -2], jnp.bfloat16), "float32"),
        (np.array([1, -2], np.int64), "int32"),
        (np.array([2**31 - 1, -(2**31)], np.int64), "int32"),
        (np.array([1, 2], np.uint64), "uint32"),
        (np.array([1, 2], np.int8), "float32"),
        (np.array([1 + 2j, 0], np.complex128), "complex64"),
        (np.array([1, 2], np.float32), "complex64"),
        (np.array([True, False]), "bool"),
        (np.empty((0, 2), np.int64), "int32"),
    ],
)
def test_conversion(array: Any, dtype: str) -> None:
    converted = as_dtype(array, dtype, "w.dat", Meter())
    assert converted.dtype == jnp.dtype(dtype)
    assert converted.tolist() == array.tolist()


def test_equal_dtypes_are_not_copied() -> None:
    array = np.zeros(3, np.float32)
    assert as_dtype(array, "float32", "w.dat", Meter()) is array


def test_reals_that_are_too_large_stay_finite() -> None:
    found = as_dtype(np.array([-1e300, 1e30, np.inf]), "float32", "w.dat", Meter())
    assert found.tolist() == [np.finfo(np.float32).min, np.float32(1e30), np.inf]


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_integers_that_do_not_fit(dtype: str) -> None:
    assert not jax.config.read("jax_enable_x64")
    array = np.array([-5 if dtype == "int64" else 5, 2**40], dtype)
    message = (
        rf"w.dat holds values from -?5 to {2**40}, which do not fit {dtype[:-2]}32\n"
        r".*jax.config.update\('jax_enable_x64', True\), and load again"
    )
    with pytest.raises(DataError, match=message):
        as_dtype(array, f"{dtype[:-2]}32", "w.dat", Meter())


@pytest.mark.parametrize(
    ("array", "dtype", "message"),
    [
        (np.zeros(2, np.float32), "int32", "holds scalars, .* hold integers"),
        (np.zeros(2, jnp.bfloat16), "int32", "holds scalars, .* hold integers"),
        (np.zeros(2, bool), "float32", "holds logical values, .* hold scalars"),
        (np.zeros(2, np.int32), "bool", "holds integers, .* hold logical values"),
        (np.zeros(2, np.complex64), "float32", "holds complex numbers, .* hold scalars"),
        (np.array(["a"], object), "float32", "holds strings, .* hold scalars"),
    ],
)
def test_data_of_another_kind(array: Any, dtype: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        as_dtype(array, dtype, "w.dat", Meter())
