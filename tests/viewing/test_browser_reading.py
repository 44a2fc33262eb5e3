"""The page as it is read: nothing overlaps, text is readable, on any screen, by keys alone."""

from __future__ import annotations

import io
import json
import struct
import xml.etree.ElementTree as ElementTree
import zlib
from pathlib import Path

import numpy as np
import pytest

import nnef_jax
from nnef_jax.viewing.page import Page, page_of
from tests.text_support import network
from tests.viewing.networks import gpt
from tests.viewing.test_page import DIGITS

pytestmark = pytest.mark.slow

PHONE, DESKTOP = (390, 844), (1440, 900)
NETWORKS = {
    "digits": lambda: nnef_jax.view(DIGITS),
    "resnet": lambda: nnef_jax.view("tests/torch_networks/resnet.nnef.tgz"),
    "vit": lambda: nnef_jax.view("tests/torch_networks/vit.nnef.tgz"),
    "gpt": lambda: page_of(network(gpt(6))),
}

# Of what is drawn: boxes that overlap and are not within each other, texts that leave their box or
# overlap another text, and texts smaller than 7.4 pixels.
FAULTS = """() => {
  const faults = [];
  const rect = (e) => e.getBoundingClientRect();
  const meet = (a, b, by = 1) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > by
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > by;
  const boxes = [...document.querySelectorAll("#graph .box")];
  const frames = boxes.map((e) => rect(e.querySelector(":scope > .card, :scope > .frame")));
  const inside = (i, j) => boxes[i].contains(boxes[j]) || boxes[j].contains(boxes[i]);
  const scale = new DOMMatrix(getComputedStyle(document.querySelector("#graph .scene")).transform).a
    || document.querySelector("#graph .scene").transform.baseVal.consolidate().matrix.a;
  for (let i = 0; i < boxes.length; i++) {
    for (let j = 0; j < i; j++) {
      if (!inside(i, j) && meet(frames[i], frames[j])) faults.push(`boxes ${boxes[i].ariaLabel} ${boxes[j].ariaLabel}`);
    }
  }
  const texts = [...document.querySelectorAll("#graph text")].filter((e) => rect(e).width > 0);
  for (const e of texts) {
    const size = parseFloat(getComputedStyle(e).fontSize) * scale;
    if (size < 7.4) faults.push(`small ${size} ${e.textContent}`);
    const box = e.parentElement.closest(".box");
    const card = box && box === e.parentElement && rect(box.querySelector(":scope > .card, :scope > .frame"));
    if (card && (rect(e).right > card.right + 1 || rect(e).left < card.left - 1)) faults.push(`leaves ${e.textContent}`);
  }
  for (let i = 0; i < texts.length; i++) {
    for (let j = 0; j < i; j++) {
      if (meet(rect(texts[i]), rect(texts[j]), 3.5)) faults.push(`texts ${texts[i].textContent} ${texts[j].textContent}`);
    }
  }
  return faults;
}"""  # noqa: E501


@pytest.fixture(scope="module", params=NETWORKS)
def page(request):
    return NETWORKS[request.param]()


def shown_count(tab) -> int:
    return tab.evaluate(
        "[...document.querySelectorAll('#graph text')]"
        ".filter((e) => e.getBoundingClientRect().width > 0).length"
    )


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_nothing_overlaps_and_all_text_can_be_read(opened, page, size) -> None:
    tab = opened(page, size=size)
    for keys in ("", "f", "h", "f", "h"):
        if keys:
            tab.keyboard.press(keys)
        assert tab.evaluate(FAULTS) == []
        assert shown_count(tab) > 3
    tab.click("#unfold")
    assert tab.evaluate(FAULTS) == []


@pytest.mark.parametrize("size", [DESKTOP, PHONE, (800, 600)])
def test_the_page_fits_the_screen(opened, page, size) -> None:
    tab = opened(page, size=size)
    assert tab.evaluate("document.documentElement.scrollWidth") <= size[0]
    for button in ("fold", "unfold", "fit", "across", "svg", "png", "theme", "help", "query"):
        box = tab.locator(f"#{button}").bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= size[0] and box["height"] >= 24
    graph, panel = (tab.locator(x).bounding_box() for x in ("#graph", "#panel"))
    assert graph["width"] > 300 and graph["height"] > 250
    assert graph["x"] + graph["width"] <= panel["x"] or graph["y"] + graph["height"] <= panel["y"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(opened, page, scheme) -> None:
    tab = opened(page)
    tab.emulate_media(color_scheme=scheme)
    tab.wait_for_timeout(300)
    colours = tab.evaluate("""() => [["#graph .title", "#graph .card"], ["#graph .text", "#graph .card"],
      ["#panel h2", "#panel"], ["#panel .muted", "#panel"]].map(([text, ground]) => {
        const [a, b] = [text, ground].map((q) => getComputedStyle(document.querySelector(q)));
        return [text.includes("graph") ? a.fill : a.color, ground.includes("graph") ? b.fill : b.backgroundColor];
      })""")  # noqa: E501
    for text, ground in colours:
        assert contrast(text, ground) >= 4.5  # WCAG 2.2, level AA


def contrast(first: str, second: str) -> float:
    """The ratio of luminances of two colours, as WCAG defines it."""

    def luminance(colour: str) -> float:
        parts = [int(x) / 255 for x in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def test_keys_alone_reach_all(opened) -> None:
    tab = opened(NETWORKS["resnet"]())
    focus = "document.activeElement.id || document.activeElement.getAttribute('class')"
    reached = []
    for _ in range(12):
        tab.keyboard.press("Tab")
        reached.append(tab.evaluate(focus))
    for name in (
        "query",
        "colours",
        "fold",
        "fit",
        "across",
        "svg",
        "png",
        "theme",
        "help",
        "graph",
    ):
        assert name in reached
    while tab.evaluate(focus) != "graph":
        tab.keyboard.press("Shift+Tab")
    tab.keyboard.press("ArrowDown")
    assert "box" in tab.evaluate(focus)
    for _ in range(5):  # along the edges to the first group, and into it
        tab.keyboard.press("ArrowDown")
    selected = tab.inner_text("#panel h2")
    tab.keyboard.press("Enter")
    assert tab.inner_text("#panel h2") == selected
    tab.keyboard.press("p")
    assert tab.evaluate(focus) == "panel"
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.querySelector('#panel').contains(document.activeElement)")
    tab.keyboard.press("Escape")
    assert "selected" in tab.evaluate(focus)
    before = tab.get_attribute("#graph .scene", "transform")
    tab.keyboard.press("Shift+ArrowDown")
    assert tab.get_attribute("#graph .scene", "transform") != before
    tab.keyboard.press("?")
    assert tab.is_visible("#keys")
    tab.keyboard.press("Escape")
    assert not tab.is_visible("#keys")


def test_search_finds_parameters_shapes_and_attributes(opened) -> None:
    tab = opened(NETWORKS["resnet"]())

    def found(query):
        tab.fill("#query", query)
        return tab.locator("#found [role=option]").all_inner_texts()

    assert any("layer2.shortcut.0.weight" in x for x in found("layer2.shortcut.0.weight"))
    assert all("32\u00d716\u00d71\u00d71" in x for x in found("32x16x1x1")) and found("32x16x1x1")
    assert len(found("conv stride=[2, 2]")) == 3
    assert [x.split("\n")[0] for x in found("batch_norm layer2")[:3]] == ["batch_normalization"] * 3
    assert found("no such thing") == [] and tab.inner_text("#found") == "nothing"
    whole = found("layer2__shortcut___1__batch")[0]
    assert "layer2__shortcut___1__batch_norm0" in whole
    big = opened(page_of(network(gpt(70))))
    big.fill("#query", "softmax")
    assert big.locator("#found [role=option]").count() == 60
    assert "and 10 more" in big.inner_text("#found")


def test_what_is_drawn_is_saved(opened) -> None:
    tab = opened(NETWORKS["resnet"](), "#layer1")
    tab.keyboard.press("Enter")
    with tab.expect_download() as started:
        tab.click("#svg")
    assert started.value.suggested_filename == "network.svg"
    root = ElementTree.parse(started.value.path()).getroot()
    space = "{http://www.w3.org/2000/svg}"
    texts = {text.text for text in root.iter(f"{space}text") if text.get("display") != "none"}
    assert {"conv", "batch_normalization", "relu"} <= texts
    assert all(text.get("fill", "").startswith("rgb") for text in root.iter(f"{space}text"))
    width, height = (int(root.get(name, "0")) for name in ("width", "height"))
    with tab.expect_download() as started:
        tab.click("#png")
    data = Path(started.value.path()).read_bytes()
    assert data.startswith(b"\x89PNG") and struct.unpack(">II", data[16:24]) == (
        2 * width,
        2 * height,
    )
    assert len({*zlib.decompress(idat(data))}) > 20  # no blank picture


def test_what_is_saved_of_hostile_names_is_text(opened) -> None:
    name = "</text><script>x</script>&\\u0001\\ud800]]>"
    text = json.dumps(NETWORKS["digits"]().data)
    for known in ("relu1", "relu2", "probabilities"):
        text = text.replace(known, name)
    tab = opened(Page(json.loads(text)))
    with tab.expect_download() as started:
        tab.click("#svg")
    root = ElementTree.parse(started.value.path()).getroot()
    assert any("<script>" in (title.text or "") for title in root.iter())
    assert not any("script" in element.tag for element in root.iter())
    with tab.expect_download() as started:
        tab.click("#png")
    assert Path(started.value.path()).read_bytes().startswith(b"\x89PNG")


def idat(data: bytes) -> bytes:
    """The compressed rows of a PNG."""
    file, parts = io.BytesIO(data[8:]), []
    while head := file.read(8):
        size, kind = struct.unpack(">I4s", head)
        parts.append(file.read(size) if kind == b"IDAT" else file.read(size)[:0])
        file.read(4)
    return b"".join(parts)


def test_small_arrays_are_shown_and_saved(opened) -> None:
    model = nnef_jax.load(DIGITS)
    tab = opened(NETWORKS["digits"](), "#conv1")
    details = tab.locator("#panel details")
    assert details.count() == 2
    details.first.locator("summary").click()
    cells = details.first.locator("td").all_inner_texts()
    filter = np.asarray(model.params["conv1_filter"])
    np.testing.assert_allclose([float(x) for x in cells], filter.ravel(), rtol=1e-5)
    assert details.first.locator("th").nth(4).inner_text() == "1,0,1"
    with tab.expect_download() as started:
        details.first.locator("button").click()
    assert started.value.suggested_filename == "digits.conv1_filter.npy"
    np.testing.assert_array_equal(np.load(started.value.path()), filter)


def test_the_overview_shows_and_moves_what_is_in_sight(opened) -> None:
    tab = opened(NETWORKS["gpt"]())
    tab.keyboard.press("f")
    for _ in range(6):
        tab.keyboard.press("+")
    assert tab.is_visible("#map")
    before = tab.get_attribute("#graph .scene", "transform")
    box = tab.locator("#map").bounding_box()
    tab.mouse.click(box["x"] + box["width"] / 2, box["y"] + 10)
    assert tab.get_attribute("#graph .scene", "transform") != before
    small = opened(NETWORKS["digits"]())
    assert not small.is_visible("#map")


def test_many_inputs_are_folded(opened) -> None:
    names = [f"x{i}" for i in range(300)]
    lines = [f"{name} = external<scalar>(shape = [2]);" for name in names]
    lines += [f"y{i} = add({'x0' if not i else f'y{i - 1}'}, x{i});" for i in range(300)]
    text = f"version 1.0;\ngraph g({', '.join(names)}) -> (y299)\n{{\n" + "\n".join(lines) + "\n}\n"
    tab = opened(page_of(network(text)))
    assert tab.locator(".box").count() < 80
    assert tab.locator("[aria-label='group 300 inputs']").count() == 1
    tab.fill("#query", "x299")
    tab.keyboard.press("Enter")
    assert tab.locator(".box.input.selected").count() == 1
