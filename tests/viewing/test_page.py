"""The page of a network: its data against the network, and that names cannot be more than text."""

from __future__ import annotations

import base64
import html
import io
import json
import re
from html.parser import HTMLParser

import jax
import numpy as np
import pytest

import nnef_jax
from nnef_jax.measure.array_statistics import SAMPLE, statistics_of
from nnef_jax.viewing.data import VALUES
from nnef_jax.viewing.page import page_of
from tests.helpers import archive, model_of
from tests.text_support import network
from tests.viewing.networks import gpt

DIGITS = "examples/digits/model"
HOSTILE = "</script><script>document.title='no'</script><img src=x onerror=alert(1)>&amp;\u2028'\\"


@pytest.fixture(scope="module")
def digits():
    return nnef_jax.load(DIGITS)


def by_name(data):
    return {node["name"]: node for node in data["nodes"]}


def test_digits_are_as_in_the_summary(digits) -> None:
    data = nnef_jax.view(digits).data
    total = str(digits.summary()).splitlines()[-1]
    totals = data["totals"]
    assert f"{totals['parameters']:,} parameters, {totals['multiply_adds']:,} multiply" in total
    lines = {line.split()[0]: line.split() for line in str(digits.summary()).splitlines()[5:-2]}
    operations = [node for node in data["nodes"] if node["type"] == "operation"]
    assert [node["name"] for node in operations] == [*lines]
    for node in operations:
        numbers = [int(x.replace(",", "")) for x in lines[node["name"]][4:]]
        assert [x for x in (node["parameters"], node["multiply_adds"]) if x] == numbers
        assert node["kind"] == lines[node["name"]][1]
    assert totals["operations"] == len(operations) == 9


def test_edges_are_those_of_the_graph(digits) -> None:
    data = nnef_jax.view(digits).data
    tensors = [tensor["name"] for tensor in data["tensors"]]
    conv = by_name(data)["conv2"]
    assert [(name, tensors[t]) for name, t in conv["reads"]] == [
        ("input", "relu1"), ("filter", "filter2"), ("bias", "bias2")
    ]  # fmt: skip
    assert [tensors[t] for t in conv["writes"]] == ["conv2"]
    assert data["tensors"][conv["writes"][0]] == {
        "name": "conv2", "shape": [None, 32, 8, 8], "dtype": "float32"
    }  # fmt: skip
    assert conv["place"].startswith("graph.nnef:") and conv["text"].startswith("conv2 = conv(")
    assert dict(conv["attributes"])["padding"] == "[[1, 1], [1, 1]]"
    assert data["file"] == "model"  # and no more of the path


def test_statistics_are_those_of_the_arrays(digits) -> None:
    data = nnef_jax.view(digits).data
    for parameter in data["parameters"]:
        array, found = np.asarray(digits.params[parameter["label"]]), parameter["statistics"]
        assert found["count"] == found["sampled"] == sum(found["histogram"]) == array.size
        assert (found["min"], found["max"]) == (array.min(), array.max())
        np.testing.assert_allclose(found["mean"], array.mean(dtype=float), rtol=1e-9)
        np.testing.assert_allclose(found["std"], array.std(dtype=float), rtol=1e-9)


def test_a_model_and_its_file_have_the_same_page(digits) -> None:
    assert nnef_jax.view(digits).data == nnef_jax.view(DIGITS).data


@pytest.mark.parametrize(
    ("array", "wanted"),
    [
        (np.zeros((0, 3)), {"count": 0, "min": None, "mean": None, "zeros": 0}),
        (np.float32([np.nan, np.inf, 2, 0]), {"min": 0, "max": 2, "nonfinite": 2, "zeros": 1}),
        (np.array([True, False, True]), {"min": 0, "max": 1, "zeros": 1}),
        (np.complex64([3 + 4j]), {"min": 5, "max": 5, "std": 0}),
        (np.full(9, 1e308), {"mean": 1e308, "std": 0, "histogram": [9]}),
        (np.float64([-1.7e308, 1.7e308]), {"mean": 0, "max": 1.7e308}),
        (np.nextafter(np.float64([1, 1, 1]), [1, 1, 2]), {"histogram": [2, *[0] * 30, 1]}),
        (jax.numpy.ones(4, "bfloat16"), {"mean": 1, "count": 4}),
    ],
)
def test_statistics_of_what_is_unusual(array, wanted) -> None:
    found = statistics_of(array)
    json.dumps(found, allow_nan=False)
    assert {name: found[name] for name in wanted} == wanted


def test_large_arrays_are_sampled_evenly() -> None:
    array = np.arange(40 * SAMPLE, dtype=np.int32).reshape(40, -1).T  # not contiguous in C's order
    found = statistics_of(array)
    assert (found["count"], found["sampled"]) == (array.size, SAMPLE)
    assert (found["min"], found["max"]) == (0, array.size - 1)
    assert abs(found["mean"] / array.size - 0.5) < 0.01


def test_state_goes_back_and_scans_have_insides() -> None:
    data = nnef_jax.view("tests/tract_archives/stream_recurrence.nnef.tgz").data
    nodes = data["nodes"]
    states = [node for node in nodes if node["type"] == "state" and node["parent"] == 0]
    assert len(states) == 6 and all("update" in node for node in states)
    (scan,) = [i for i, node in enumerate(nodes) if node.get("kind") == "scan"]
    inside = [node for node in nodes if node["parent"] == scan]
    assert {"input", "state", "operation", "output"} <= {node["type"] for node in inside}
    # What the scan writes, an output inside writes: edges lead through.
    written = {t for node in inside if node["type"] == "output" for t in node["writes"]}
    assert written <= {*nodes[scan]["writes"]}
    ports = [node for node in inside if node["type"] in ("input", "state")]
    read = {t for node in ports for _, t in node["reads"]}
    assert {t for _, t in nodes[scan]["reads"]} <= read
    assert data["totals"]["operations"] == 27  # what a scan repeats is counted with it


def test_parents_come_first_and_groups_are_sums() -> None:
    network = model_free(gpt(3))
    data = nnef_jax.view(network).data
    for index, node in enumerate(data["nodes"][1:], 1):
        assert 0 <= node["parent"] < index
    group = by_name(data)["blocks/1"]
    index = data["nodes"].index(group)
    inside = [node for node in data["nodes"] if index in ancestors(data["nodes"], node)]
    operations = [node for node in inside if node["type"] == "operation"]
    assert len(operations) == group["operations"] == 34
    assert sum(node["multiply_adds"] for node in operations) == group["multiply_adds"]
    # 6 products of 16 rows, and 2 of 16 by 16 with the 32 channels
    assert group["multiply_adds"] == 16 * (4 * 32 * 32 + 2 * 64 * 32) + 2 * 16 * 16 * 32
    assert group["parameters"] == 4 * 32 * 32 + 2 * 64 * 32 + 2 * 32


@pytest.mark.parametrize("layers", [1, 3, 12, 60])
def test_the_first_view_has_some_boxes(layers) -> None:
    data = nnef_jax.view(model_free(gpt(layers))).data
    drawn = {0, *data["open"]}
    shown = [i for i, n in enumerate(data["nodes"]) if n["parent"] in drawn and i not in drawn]
    assert 5 <= len(shown) <= 65
    assert all(data["nodes"][i]["parent"] in drawn for i in data["open"])


def ancestors(nodes, node):
    found = []
    while node["parent"] is not None:
        found.append(node["parent"])
        node = nodes[node["parent"]]
    return found


def model_free(text):
    """The bytes of a network with zeros for its variables."""
    shapes = re.findall(r"shape = (\[[\d, ]+\]), label = '([^']+)'", text)
    return _bytes_of(text, {label: np.zeros(json.loads(shape), "f4") for shape, label in shapes})


def _bytes_of(text, arrays):
    import io

    members = {}
    for label, array in arrays.items():
        file = io.BytesIO()
        nnef_jax.write_tensor(file, array)
        members[label] = file.getvalue()
    return archive(graph=text, **members)


# What colours boxes


def test_a_profile_colours_operations(digits) -> None:
    rows = [{"name": "conv1", "seconds": 2.0}, {"name": "conv2", "seconds": 3.0, "kind": "conv"}]
    data = nnef_jax.view(digits, profile={"operations": rows, "seconds": 6.0}).data
    assert data["coloured_by"] == ["seconds"]
    assert [n["name"] for n in data["nodes"] if n.get("seconds") == 3.0] == ["conv2"]
    assert data["nodes"][0]["seconds"] == 5.0


def test_a_comparison_colours_operations(digits) -> None:
    pytest.importorskip("nnef_jax.analysis")
    key = "conv2_filter"
    other = digits.with_params({**digits.params, key: digits.params[key] * 1.5})
    found = nnef_jax.analysis.compare(digits, other, np.ones((1, 1, 8, 8), "f4"))
    node = by_name(nnef_jax.view(digits, comparison=found).data)
    assert node["conv1"]["error"] == 0 and node["conv1"]["reason"] == ""
    # The filter's error is half of what is wanted; the bias changes that a little.
    assert 0.4 < node["conv2"]["error"] < 0.6 and node["conv2"]["reason"] == "values"


def test_what_differs_but_cannot_be_measured_is_all_wrong(digits) -> None:
    rows = {
        "conv1": {"b": "conv1", "snr": "NaN", "reason": "nan"},
        "relu1": {"b": "relu1", "snr": "Infinity", "reason": ""},
        "conv2": {"b": "conv2", "snr": 20.0, "reason": "values"},
    }
    nodes = by_name(nnef_jax.view(digits, comparison={"tensors": rows}).data)
    assert [nodes[name]["error"] for name in rows] == [1.0, 0.0, pytest.approx(0.1)]


@pytest.mark.parametrize(
    ("option", "given", "message"),
    [
        ("profile", {"rows": []}, "the profile has not the form"),
        (
            "profile",
            {"operations": [{"name": "conv1", "seconds": None}]},
            "the profile has not the form",
        ),
        (
            "profile",
            {"operations": [{"name": "conv1", "seconds": 10**400}]},
            "the profile has not the form",
        ),
        ("comparison", {"tensors": []}, "the comparison has not the form"),
        ("profile", {"operations": [{"name": "other", "seconds": 1}]}, "names no operation of"),
    ],
)
def test_what_colours_nothing_is_refused(digits, option, given, message) -> None:
    with pytest.raises(nnef_jax.InputError, match=message):
        nnef_jax.view(digits, **{option: given})


def test_wrong_arguments_are_refused(digits, tmp_path) -> None:
    with pytest.raises(TypeError, match="profile must be"):
        nnef_jax.view(digits, profile=3)
    with pytest.raises(TypeError, match="output must be a path"):
        nnef_jax.view(digits, 3)
    with pytest.raises(TypeError, match="overwrite must be"):
        nnef_jax.view(digits, tmp_path / "x.html", overwrite=1)
    with pytest.raises(TypeError, match="must be a path, bytes or a binary file"):
        nnef_jax.view(3)


# The file


class Elements(HTMLParser):
    """The elements of a page, and what scripts hold."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.scripts, self.inside = [], [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        self.inside = tag == "script"
        if self.inside:
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.scripts[-1] += data


def hostile_model():
    return model_of(
        "version 1.0;\ngraph g(x) -> (y)\n{\n    x = external<scalar>(shape = [2]);\n"
        f"    w = variable<scalar>(shape = [1], label = 'a/{'b' * 9}');\n"
        "    y = add(x, w); # </script><script>alert(1)</script>\n}\n",
        data={"a/" + "b" * 9: np.float32([1])},
    )


def test_no_name_is_more_than_text(digits) -> None:
    # A document of NNEF has no such names, tract's dialect and labels nearly do.
    page = nnef_jax.view(digits)
    plain = Elements(page.html)
    data = json.loads(json.dumps(page.data).replace("relu1", "@").replace("digits", "@"))
    text = json.dumps(data).replace("@", json.dumps(HOSTILE)[1:-1])
    found = Elements(type(page)(json.loads(text)).html)
    assert found.tags == plain.tags  # no element more
    assert json.loads(found.scripts[0]) == json.loads(text)
    assert found.scripts[1:] == plain.scripts[1:]
    assert "\u2028" not in "".join(found.scripts)


def test_the_document_ends_no_element() -> None:
    page = nnef_jax.view(hostile_model())
    assert "</script><script>alert" in json.dumps(page.data)
    assert Elements(page.html).tags == Elements(nnef_jax.view(DIGITS).html).tags


def test_a_page_asks_for_nothing(digits) -> None:
    text = nnef_jax.view(digits).html
    found = Elements(text)
    links = [x for x in found.attributes if x[1] in ("src", "href", "srcset", "action")]
    assert links == [("link", "href", "data:,")]
    (policy,) = [v for _, name, v in found.attributes if name == "content" and "default" in v]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    assert not re.findall(
        r"\bfetch\(|XMLHttpRequest|WebSocket|innerHTML|\beval\(", found.scripts[2]
    )
    assert "url(http" not in text and "@import" not in text
    assert "@license" in text or "Permission is hereby granted" in text  # dagre's


def test_nothing_is_overwritten_unasked(digits, tmp_path) -> None:
    path = tmp_path / "net.html"
    nnef_jax.view(digits, path)
    before = path.read_text(encoding="utf-8")
    assert before.startswith("<!doctype html>")
    with pytest.raises(FileExistsError):
        nnef_jax.view(digits, path)
    nnef_jax.view(digits, path, overwrite=True)
    assert path.read_text(encoding="utf-8") == before
    assert [p.name for p in tmp_path.iterdir()] == ["net.html"]


def test_a_notebook_shows_the_page_in_a_frame(digits) -> None:
    page = nnef_jax.view(digits)
    found = Elements(page._repr_html_())
    assert found.tags == ["iframe"]
    (source,) = [value for _, name, value in found.attributes if name == "srcdoc"]
    assert source == page.html and html.escape(page.html) in page._repr_html_()


def test_small_arrays_are_in_the_page_as_npy_files(digits) -> None:
    shown = {x["label"]: x for x in nnef_jax.view(digits).data["parameters"]}
    for label, array in digits.params.items():
        assert array.size <= VALUES
        found = np.load(io.BytesIO(base64.b64decode(shown[label]["npy"])), allow_pickle=False)
        np.testing.assert_array_equal(found, array)
    lines = "w = variable<scalar>(shape = [130, 130], label = 'w'); y = matmul(x, w);"
    text = (
        f"version 1.0;\ngraph g(x) -> (y)\n{{ x = external<scalar>(shape = [2, 130]); {lines} }}\n"
    )
    large = model_of(text, data={"w": np.ones((130, 130), np.float32)})
    (parameter,) = nnef_jax.view(large).data["parameters"]
    assert "npy" not in parameter and parameter["statistics"]["count"] == 130 * 130


def test_many_ports_are_groups() -> None:
    names = [f"x{i}" for i in range(130)]
    lines = [f"{name} = external<scalar>(shape = [2]); y{name} = relu({name});" for name in names]
    results = ", ".join(f"y{name}" for name in names)
    body = " ".join(lines)
    data = page_of(
        network(f"version 1.0;\ngraph g({', '.join(names)}) -> ({results}) {{ {body} }}")
    ).data
    nodes = data["nodes"]
    for type in ("input", "output"):
        found = [node for node in nodes if node["type"] == type]
        assert [node["name"] for node in found][:2] == [
            ("x" if type == "input" else "yx") + i for i in "01"
        ]
        parents = [nodes[node["parent"]] for node in found]
        assert [x["label"] for x in parents[::60]] == ["0 … 59", "60 … 119", "120 … 129"]
        assert all(nodes[x["parent"]]["label"] == f"130 {type}s" for x in parents)
    assert all(node["parent"] is None or node["parent"] < i for i, node in enumerate(nodes))


def test_arrays_that_cannot_be_read_have_no_statistics(digits) -> None:
    def pages(params):
        parameters = nnef_jax.view(digits.with_params(params)).data["parameters"]
        assert all(parameter["statistics"] is None for parameter in parameters)
        return 0

    jax.make_jaxpr(pages)(digits.params)
