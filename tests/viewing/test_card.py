"""A model in a notebook: a card without scripts, whose names are text."""

from __future__ import annotations

import re

import nnef_jax
from nnef_jax.viewing.card import card
from tests.text_support import network
from tests.viewing.networks import gpt
from tests.viewing.test_page import DIGITS, Elements


def test_a_card_has_what_the_summary_has() -> None:
    model = nnef_jax.load(DIGITS)
    text = model._repr_html_()
    for words in ("digits", "9,930 parameters", "309,248 multiply-adds", "image float32[?,1,8,8]"):
        assert words in text
    for name in ("ink", "conv1", "relu1", "probabilities"):
        assert f"<span>{name} <small>" in text
    assert "script" not in {*Elements(text).tags}


def test_a_card_folds_and_is_bounded() -> None:
    text = card(network(gpt(70)))
    assert text.count("<details>") > 2 and "&times;70" in text
    assert text.count('class="row"') <= 1 + 200
    more = sum(int(n.replace(",", "")) for n in re.findall(r"and ([\d,]+) more", text))
    assert more > 0


def test_a_name_is_text() -> None:
    labels = [f"<img src=x onerror=alert({i})>/w" for i in range(3)]
    lines = ["x0 = external<scalar>(shape = [2]);"]
    for i, label in enumerate(labels):
        lines.append(f"w{i} = variable<scalar>(shape = [2], label = '{label}');")
        lines.append(f"x{i + 1} = mul(x{i}, w{i});")
    text = card(network(f"version 1.0;\ngraph g(x0) -> (x3)\n{{\n{' '.join(lines)}\n}}\n"))
    assert "img" not in Elements(text).tags
    assert "&lt;img src=x onerror=alert(1)&gt; <small>mul" in text
