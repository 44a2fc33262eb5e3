"""Descriptions of networks with small operations: recurrent networks, and many tiny layers."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from benchmarks.builders.base import Builder

T = TypeVar("T")


def lstm(b: Builder[T], batch: int, *, steps: int = 128, inputs: int = 256, hidden: int = 256) -> T:
    """Describe an LSTM over a sequence, whose output is all hidden states."""
    return b.lstm_layer("lstm", b.input("x", steps, batch, inputs), batch, inputs, hidden)


def gru(b: Builder[T], batch: int, *, steps: int = 128, inputs: int = 256, hidden: int = 256) -> T:
    """Describe a GRU over a sequence, whose output is all hidden states."""
    return b.gru_layer("gru", b.input("x", steps, batch, inputs), batch, inputs, hidden)


def mlp(b: Builder[T], batch: int, *, layers: int = 100, width: int = 8) -> T:
    """Describe many tiny dense layers. Their time is mostly the overhead of a call."""
    x = b.input("x", batch, width)
    for layer in range(layers):
        # The matrix is close to the identity, so that the result of the last layer still depends on
        # the input.
        weight = np.eye(width, dtype=np.float32) + b.normal(width, width, deviation=0.05)
        bias = b.parameter(f"layer{layer}.bias", b.normal(width, deviation=0.1))
        x = b.relu(b.dense(x, b.parameter(f"layer{layer}.weight", weight), bias))
    return x
