"""Whatever is done to a document of the dialect, what comes of it is a model or an NnefError."""

from __future__ import annotations

import random
import tarfile
from pathlib import Path
from typing import Any

import pytest

from nnef_jax import Limits, NnefError
from tests.fuzz.documents import DATA, TRACT
from tests.fuzz.texts import changed_words
from tests.helpers import model_of

NAMES = (
    "op_lstm_bidi_2l",
    "dyn_cumsum_topk",
    "opl_resize",
    "op_stft_nocenter_smallwin",
    "op_scatter",
)
SMALL = Limits(steps=200_000, operations=2_000, array_items=100_000, tensor_items=1 << 24)


def outcome(text: str, data: dict[str, Any]) -> str:
    """ "model", or the kind of the error; anything but an NnefError passes through."""
    try:
        model_of(text, data=data, limits=SMALL)
    except NnefError as error:
        assert str(error) and all(e.message for e in error.errors)
        return type(error).__name__
    return "model"


@pytest.mark.parametrize("text", TRACT, ids=["exported", "written", "pulsed"])
def test_the_documents_themselves_are_right(text: str) -> None:
    assert outcome(text, DATA) == "model"


def test_mutations() -> None:
    chance = random.Random(0)
    for _ in range(300):
        outcome(changed_words(chance.choice(TRACT), "tract", chance), DATA)


@pytest.mark.parametrize("name", NAMES)
def test_mutations_of_exported_networks(name: str, shared_cases: Path) -> None:
    with tarfile.open(shared_cases / "tract" / f"{name}.nnef.tgz") as archive:
        member = archive.extractfile("graph.nnef")
        assert member is not None
        text = member.read().decode()
    chance = random.Random(name)
    for _ in range(15):
        outcome(changed_words(text, "tract", chance), {})


def test_truncations() -> None:
    for text in TRACT:
        for end in range(0, len(text), 97):
            outcome(text[:end], DATA)
