"""Chat templates: what transformers renders, and attacks that end in bounded time and memory."""

from __future__ import annotations

import importlib.util
import json
import re
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from nnef_jax.errors import DataError, LimitError, UnsupportedError
from nnef_jax.generation import chat_template
from nnef_jax.generation.chat_template import rendered

USER = [{"role": "user", "content": "What is <1> & 'é'?"}]
CHATS = json.loads((Path(__file__).parent / "networks" / "chats.json").read_text("utf-8"))


@pytest.mark.parametrize("name", CHATS)
def test_texts_are_those_of_transformers(name: str) -> None:
    chat = CHATS[name]
    assert rendered(chat["template"], chat["messages"], chat["tokens"], "x") == chat["text"]


def test_the_date_is_that_of_today() -> None:
    text = rendered("{{ strftime_now('%Y') }}", USER, {}, "x")
    assert abs(int(text) - datetime.now().year) <= 1


ATTACKS = {
    "a long loop": ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
    "loops in loops": (
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "takes more than 2 s",
    ),
    "a huge text": ("{{ 'a' * 10**9 }}", "memory"),
    "a text of huge texts": ("{% set x = 'a' * 10**6 %}{{ ([x] * 600) | join }}", "memory"),
    "much text": (
        "{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}",
        r"the text has more than \d+ bytes",
    ),
    "a large number": ("{{ 10 ** (10 ** 10) }}", "takes more than 2 s|memory"),
    "many digits": ("{{ (7 ** (10 ** 6)) | string | length }}", "digits|takes more"),
    "a macro of itself": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "too deeply"),
    "deep parentheses": ("{{ " + "(" * 50_000 + ")" * 50_000 + " }}", "too deeply|was ended by"),
    "deep blocks": ("{% if 1 %}" * 9_000 + "{% endif %}" * 9_000, "too deeply|was ended by"),
    "a wide format": ("{{ '%999999999d' % 1 }}", "memory"),
    "a wide field": ("{{ '{:>999999999}'.format(1) }}", "memory"),
    "doubling": (
        "{% set x = namespace(s='a') %}{% for i in range(99) %}{% set x.s = x.s ~ x.s %}"
        "{% endfor %}",
        "memory",
    ),
    "a large template": ("a" * (chat_template.MOST_TEMPLATE + 1), "a template of 262145 bytes"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ends with an error that names the file, after seconds of processor time at most."""
    template, message = ATTACKS[name]
    monkeypatch.setattr(chat_template, "_SECONDS", 2)
    begin = time.monotonic()
    with pytest.raises((LimitError, DataError), match=message) as error:
        rendered(template, USER, {}, "net/chat_template.jinja")
    assert time.monotonic() - begin < 60
    assert str(error.value).startswith("net/chat_template.jinja: ")


@pytest.mark.parametrize(
    "expression",
    [
        "messages.__class__.__mro__",
        "''.__class__.__base__.__subclasses__()",
        "raise_exception.__globals__",
        "strftime_now.__globals__['json']",
        "self._TemplateReference__context",
        "cycler.__init__.__globals__",
        "('{0.__class__}').format(messages)",
        "messages.append(1)",
    ],
)
def test_objects_of_python_are_out_of_reach(expression: str) -> None:
    template = "{{ " + expression + " }}"
    try:
        text = rendered(template, USER, {}, "x")
    except DataError as error:
        assert re.search("unsafe|not safe|undefined|no attribute", str(error))
    else:
        assert not re.search("class|built-in|module|object", text)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("a\n{% for %}", "x: the chat template fails: line 2: "),
        ("a\nb\n{{ messages[0].content.nothing.at_all }}", "line 3: .*no attribute 'nothing'"),
        ("{{ raise_exception('only users') }}", "only users"),
        ("{% include 'other' %}", "no loader"),
    ],
)
def test_faults_are_located(template: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        rendered(template, USER, {}, "x")


def test_a_process_that_waits_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "_WAIT", 0.01)
    with pytest.raises(LimitError, match="takes more than"):
        rendered("a", USER, {}, "x")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def hidden(name: str) -> Any:
        return None if name == "jinja2" else find(name)

    monkeypatch.setattr(chat_template, "find_spec", hidden)
    with pytest.raises(UnsupportedError, match=r'pip install "nnef_jax\[text\]"'):
        rendered("a", USER, {}, "x")
