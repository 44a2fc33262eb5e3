"""Find the speech in a long signal: a recurrent network over all its frames, by one `lax.scan`.

    pip install --no-deps silero-vad && pip install -e ".[examples]"
    python examples/vad/make.py
    python examples/vad/detect.py silero_vad.nnef.tgz [SIGNAL.wav] [--out speech.png]

The network is Silero VAD with its state as inputs and outputs: `audio [1,576], h0 [1,128], c0
[1,128]` to `prob [1,1], h, c`. `make.py` writes it with the weights that its authors publish; an
export of theirs from PyTorch by torch_to_nnef will do as well. A frame is 512 new samples at 16 kHz
behind the last 64 of the frame before. Without SIGNAL (mono, 16 kHz, 16 bits) it is run on a signal
made here: three stretches of sound like speech (a buzz through moving formants, in syllables)
between silence, noise and a tone.
"""

from __future__ import annotations

import argparse
import wave
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import nnef_jax

RATE = 16_000  # samples a second
FRAME, CONTEXT = 512, 64
# The first three formants of some vowels in Hz (Peterson and Barney 1952, men).
VOWELS = ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480))
BANDWIDTHS = (80, 110, 160)
ORIGIN = "the archive of Silero VAD, which `python examples/vad/make.py` writes"


def load(path: str | Path) -> nnef_jax.Model:
    """The network with what its next call takes of this one as its state."""
    return nnef_jax.load(path, state={"h0": "h", "c0": "c"})


def frames(signal: np.ndarray) -> np.ndarray:
    """A signal [samples] as frames [count,1,576], each with the end of the one before."""
    count = len(signal) // FRAME
    padded = np.concatenate([np.zeros(CONTEXT, np.float32), signal[: count * FRAME]])
    starts = np.arange(count)[:, None] * FRAME
    return padded[starts + np.arange(CONTEXT + FRAME)][:, None].astype(np.float32)


def probabilities(model: nnef_jax.Model, signal: np.ndarray) -> np.ndarray:
    """The probability of speech in each frame [count]."""
    found, _ = model.scan(frames(signal))
    return np.asarray(found)[:, 0, 0]


def sensitivity(model: nnef_jax.Model, signal: np.ndarray, frame: int) -> np.ndarray:
    """How much the probability in a frame depends on the samples of each frame so far [count].

    The gradient goes back through the recurrence: what was heard before counts.
    """

    def probability(pieces: jax.Array) -> jax.Array:
        return model.scan(pieces)[0][frame, 0, 0]

    gradient = jax.grad(probability)(jnp.asarray(frames(signal)))
    return np.asarray(jnp.linalg.norm(gradient[:, 0], axis=-1))


# A signal to try it on


def speech_like(seconds: float, pitch: float, random: np.random.Generator) -> np.ndarray:
    """A buzz with a falling pitch, in syllables of changing vowels, with a hiss between them."""
    count = int(seconds * RATE)
    time = np.arange(count) / RATE
    frequency = pitch * (1 + 0.08 * np.sin(2 * np.pi * 2.1 * time) - 0.1 * time / seconds)
    phase = np.cumsum(frequency) / RATE
    pulses = np.diff(np.floor(phase), prepend=0.0) + 0.003 * random.normal(size=count)
    syllable = np.clip(np.sin(2 * np.pi * 3.6 * time + 0.4), 0, None) ** 0.6
    turns = np.minimum(time * 3.6, 1e9).astype(int) % len(VOWELS)
    formants = np.array(VOWELS, float)[turns]
    width = RATE // 25
    kernel = np.hanning(width) / np.hanning(width).sum()
    voice = pulses
    for k, bandwidth in enumerate(BANDWIDTHS):
        track = np.convolve(formants[:, k], kernel, mode="same") + 1
        voice = resonance(voice, track, bandwidth)
    voice /= np.abs(voice).max()
    hiss = np.diff(random.normal(size=count + 1)) * (syllable < 0.05) * 0.03
    return 0.5 * voice * syllable + hiss


def resonance(signal: np.ndarray, frequency: np.ndarray, bandwidth: float) -> np.ndarray:
    """A resonator of two poles whose frequency moves."""
    radius = np.exp(-np.pi * bandwidth / RATE)
    first = 2 * radius * np.cos(2 * np.pi * frequency / RATE)
    second = -(radius**2)

    def step(carry: Any, now: Any) -> Any:
        (a, b), (x, c) = carry, now
        y = x + c * a + second * b
        return (y, a), y

    start = (jnp.zeros(()), jnp.zeros(()))
    inputs = (jnp.asarray(signal, jnp.float32), jnp.asarray(first, jnp.float32))
    return np.asarray(jax.lax.scan(step, start, inputs)[1], np.float64)


def example() -> tuple[np.ndarray, list[tuple[float, float]]]:
    """Twenty seconds of sound, and where in it the parts like speech begin and end in seconds."""
    random = np.random.default_rng(0)
    parts: list[tuple[float, np.ndarray, bool]] = []

    def silence(seconds: float, level: float) -> np.ndarray:
        return level * random.normal(size=int(seconds * RATE))

    tone = 0.2 * np.sin(2 * np.pi * 1000 * np.arange(2 * RATE) / RATE)
    parts += [
        (2.0, silence(2.0, 1e-4), False),
        (3.0, speech_like(3.0, 118, random), True),
        (2.0, silence(2.0, 0.05), False),
        (4.0, speech_like(4.0, 105, random), True),
        (2.0, tone, False),
        (1.0, silence(1.0, 1e-4), False),
        (3.0, speech_like(3.0, 130, random), True),
        (3.0, silence(3.0, 1e-3), False),
    ]
    bounds = np.cumsum([0.0, *(seconds for seconds, _, _ in parts)])
    spoken = [
        (float(a), float(b))
        for (a, b), (*_, speech) in zip(pairwise(bounds), parts, strict=True)
        if speech
    ]
    signal = np.concatenate([part for _, part, _ in parts])
    return (signal + 1e-4 * random.normal(size=len(signal))).astype(np.float32), spoken


def read_wave(path: str | Path) -> np.ndarray:
    """The samples of a mono file of 16 bits at 16 kHz, between -1 and 1."""
    with wave.open(str(path)) as file:
        if (file.getnchannels(), file.getsampwidth(), file.getframerate()) != (1, 2, RATE):
            raise SystemExit(f"{path}: a mono file of 16 bits at {RATE} Hz is needed")
        data = file.readframes(file.getnframes())
    return np.frombuffer(data, "<i2").astype(np.float32) / 2**15


def draw(
    signal: np.ndarray, found: np.ndarray, spoken: Sequence[tuple[float, float]], path: str
) -> None:
    """The signal and the probability of speech over time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(10, 4))
    above.plot(np.arange(len(signal)) / RATE, signal, linewidth=0.3, color="0.4")
    above.set_ylabel("signal")
    times = (np.arange(len(found)) + 0.5) * FRAME / RATE
    below.plot(times, found, color="tab:red", linewidth=1)
    below.set(ylabel="probability of speech", xlabel="seconds", ylim=(-0.03, 1.03))
    for begin, end in spoken:
        for axes in (above, below):
            axes.axvspan(begin, end, color="tab:green", alpha=0.12, linewidth=0)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def needs(*packages: str) -> None:
    """End with what to install where one of the packages is missing."""
    for package in packages:
        try:
            import_module(package)
        except ImportError:
            raise SystemExit(f'{package} is missing: pip install -e ".[examples]"') from None


def main(argv: Sequence[str] | None = None) -> None:
    """Run the network over a signal and draw what it finds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("network", help=ORIGIN)
    parser.add_argument("signal", nargs="?", help="a wave file: mono, 16 kHz, 16 bits")
    parser.add_argument("--out", default="speech.png", help="the picture to write (%(default)s)")
    arguments = parser.parse_args(argv)
    needs("matplotlib")
    signal, spoken = (read_wave(arguments.signal), []) if arguments.signal else example()
    try:
        found = probabilities(load(arguments.network), signal)
    except (OSError, nnef_jax.NnefError) as error:
        raise SystemExit(f"{error}\nThe network to give is {ORIGIN}.") from None
    for begin, end in stretches(found):
        print(f"speech from {begin:6.2f} s to {end:6.2f} s")
    draw(signal, found, spoken, arguments.out)
    print(f"{len(found)} frames, drawn in {arguments.out}")


def stretches(found: np.ndarray, threshold: float = 0.5) -> list[tuple[float, float]]:
    """Where the probability is above a threshold, in seconds."""
    above = np.concatenate([[False], found > threshold, [False]])
    edges = np.flatnonzero(np.diff(above.astype(int))) * FRAME / RATE
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


if __name__ == "__main__":
    main()
