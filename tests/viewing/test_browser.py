"""The page in a browser: how soon it is there, folding, search, keys, dark mode, hostile names.

Debian's Chromium draws it; playwright (pip install playwright) speaks with it.
"""

from __future__ import annotations

import json

import pytest

import nnef_jax
from nnef_jax.viewing.page import Page, page_of
from tests.text_support import network
from tests.viewing.networks import gpt
from tests.viewing.test_page import DIGITS, HOSTILE

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def digits():
    return nnef_jax.view(DIGITS)


@pytest.fixture(scope="module")
def blocks():
    return page_of(network(gpt(3)))


def names(tab, selector=".box"):
    shown = tab.eval_on_selector_all(selector, "all => all.map(x => Number(x.dataset.i))")
    nodes = json.loads(tab.inner_text("#data") or tab.text_content("#data"))["nodes"]
    return [nodes[i]["name"] for i in shown]


def selected(tab):
    found = names(tab, ".box.selected")
    return found[0] if found else ""


@pytest.mark.parametrize(("layers", "operations", "most"), [(12, 400, 2000), (590, 20_000, 3000)])
def test_large_networks_are_there_soon(opened, layers, operations, most) -> None:
    page = page_of(network(gpt(layers)))
    assert page.data["totals"]["operations"] > operations
    tab = opened(page)
    assert int(tab.get_attribute("html", "data-drawn")) < most
    assert 5 <= tab.locator(".box").count() <= 60


def test_boxes_and_edges_are_those_of_the_network(opened, digits) -> None:
    tab = opened(digits)
    shown = names(tab, ".box.operation")
    assert shown == [op.name for op in nnef_jax.load(DIGITS).graph.operations]
    assert tab.locator(".edge").count() == 10
    assert tab.locator(".box.conv").count() == 0
    assert tab.locator(".box.product").count() == 3
    heights = tab.eval_on_selector_all(
        ".box.operation", "all => all.map(x => x.getBoundingClientRect().y)"
    )
    assert heights == sorted(heights)  # in the order in which they are computed


def test_groups_unfold_and_fold(opened, blocks) -> None:
    tab = opened(blocks)
    assert "blocks/1" in names(tab) and "blocks/1/attention" not in names(tab)
    tab.dblclick("[aria-label^='group 1,']")
    assert "blocks/1/attention" in names(tab)
    assert tab.get_attribute("[aria-label^='group 1,']", "aria-expanded") == "true"
    tab.keyboard.press("Enter")  # it is selected
    assert "blocks/1/attention" not in names(tab)
    tab.click("#fold")
    assert names(tab)[1:2] == ["blocks"] and tab.locator(".box.open").count() == 0
    tab.click("#unfold")
    tab.click("#unfold")
    assert "blocks/0/mlp" in names(tab)


def test_search_unfolds_what_it_finds(opened, blocks) -> None:
    tab = opened(blocks)
    tab.keyboard.press("/")
    tab.keyboard.type("attention.q")
    tab.keyboard.press("Control+a")
    tab.keyboard.type("softmax")
    assert tab.locator("#found [role=option]").count() == 3
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Enter")
    assert "softmax" in tab.inner_text("#panel h2")
    assert tab.locator(".box.selected").get_attribute("aria-label").startswith("softmax")
    assert "blocks" in tab.inner_text("#panel nav")
    assert tab.locator(".box.selected").bounding_box()["y"] > 0


def test_arrows_go_along_edges(opened, digits) -> None:
    tab = opened(digits, "#conv1")
    assert selected(tab) == "conv1"
    for key, wanted in [("ArrowDown", "relu1"), ("ArrowDown", "conv2"), ("ArrowUp", "relu1")]:
        tab.keyboard.press(key)
        assert selected(tab) == wanted
    assert tab.evaluate("document.activeElement.classList.contains('selected')")
    assert tab.url.endswith("#relu1")
    tab.keyboard.press("Escape")
    assert selected(tab) == "" and tab.inner_text("#panel h2") == "digits"


def test_links_lead_into_groups(opened, blocks) -> None:
    tab = opened(blocks, "#blocks%2F2%2Fmlp")
    assert selected(tab) == "blocks/2/mlp"
    assert opened(blocks, "#%E0%A4%A").inner_text("#panel h2") == "gpt"
    assert opened(blocks, "#@999999").inner_text("#panel h2") == "gpt"


def test_dark_mode_is_the_systems_or_ones_own(opened, digits) -> None:
    tab = opened(digits)
    ground = "getComputedStyle(document.body).backgroundColor"
    light = tab.evaluate(ground)
    tab.keyboard.press("d")
    dark = tab.evaluate(ground)
    assert dark != light
    tab.keyboard.press("d")
    assert tab.evaluate(ground) == light
    tab.emulate_media(color_scheme="dark")
    tab.reload()
    tab.wait_for_selector("html[data-drawn]")
    assert tab.evaluate(ground) == dark


def test_the_panel_has_what_is_known(opened, digits) -> None:
    tab = opened(digits, "#conv2")
    text = tab.inner_text("#panel")
    for words in (
        "conv2_filter",
        "float32 32\u00d716\u00d73\u00d73",
        "294,912",
        "padding",
        "graph.nnef:",
        "relu2",
    ):
        assert words in text
    assert tab.locator("#panel .histogram").count() == 2
    tab.click("#panel .link:text('relu2')")
    assert selected(tab) == "relu2"


def test_time_and_work_colour_boxes(opened) -> None:
    rows = [{"name": "conv1", "seconds": 1e-3}, {"name": "conv2", "seconds": 4e-3}]
    tab = opened(nnef_jax.view(DIGITS, profile={"operations": rows}))
    assert tab.input_value("#colours") == "seconds" and "4.00 ms" in tab.inner_text("#scale")
    fill = "x => getComputedStyle(x.querySelector('.card')).fill"
    hot, warm, cold = (
        tab.eval_on_selector(f"[aria-label^='{n}']", fill)
        for n in ("conv conv2", "conv conv1", "relu")
    )
    assert len({hot, warm, cold}) == 3
    tab.select_option("#colours", "parameters")
    assert tab.eval_on_selector("[aria-label^='linear']", fill) != cold
    tab.select_option("#colours", "kind")
    assert not tab.is_visible("#scale")


def test_the_first_that_differs_is_selected(opened) -> None:
    rows = {
        name: {"b": name, "snr": snr, "reason": reason}
        for name, snr, reason in [
            ("relu1", "Infinity", ""), ("conv2", 30.0, "values"), ("relu2", 20.0, "values")
        ]
    }  # fmt: skip
    tab = opened(nnef_jax.view(DIGITS, comparison={"tensors": rows}))
    assert tab.input_value("#colours") == "error" and selected(tab) == "conv2"
    assert "values" in tab.inner_text("#panel") and "0.03162" in tab.inner_text("#panel")


def test_a_notebooks_frame_works(browser, digits) -> None:
    tab, said = browser.new_page(), []
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("console", lambda message: said.append(message.text))
    tab.set_content(digits._repr_html_())
    frame = tab.frame_locator("iframe")
    frame.locator(".box[aria-label^='conv conv2']").click()
    assert "conv2_filter" in frame.locator("#panel").inner_text()
    tab.close()
    assert said == []


def test_hostile_names_are_text(opened, digits) -> None:
    text = json.dumps(digits.data).replace("relu1", "@").replace("digits", "@")
    hostile = Page(json.loads(text.replace("@", json.dumps(HOSTILE)[1:-1])))
    tab = opened(hostile)
    assert tab.locator("img, iframe, object").count() == 0
    assert tab.locator("script").count() == 3
    assert tab.inner_text("#name").startswith("</script><script>")
    tab.keyboard.press("/")
    tab.keyboard.type("onerror")
    tab.keyboard.press("Enter")
    assert "onerror=alert" in tab.inner_text("#panel")
    assert tab.locator("img").count() == 0


def test_states_and_loops_are_drawn(opened) -> None:
    tab = opened(nnef_jax.view("tests/tract_archives/stream_recurrence.nnef.tgz"))
    assert tab.locator(".box.state").count() == 6
    assert tab.locator(".edge.back").count() >= 4
    before = tab.locator(".box").count()
    tab.dblclick("[aria-label^='scan']")
    assert tab.locator(".box").count() > before + 5


def test_it_can_be_printed(opened, digits) -> None:
    tab = opened(digits)
    tab.emulate_media(media="print")
    assert not tab.is_visible("#panel") and not tab.is_visible("#search")
    assert len(tab.pdf()) > 5000
    tab.emulate_media(media="print", color_scheme="dark")
    ground = "getComputedStyle(document.body).color"
    on_paper = tab.evaluate(ground)
    tab.emulate_media(media="screen", color_scheme="dark")
    assert tab.evaluate(ground) != on_paper  # which is light in any case
