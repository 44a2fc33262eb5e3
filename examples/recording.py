"""Makes a long recording of speech, noise and music, with the times of its sections.

espeak-ng speaks the sentences if it is installed. Otherwise a buzzing sound that is filtered by the
formants of vowels takes the place of speech.
"""

from __future__ import annotations

import shutil
import subprocess
import wave
from itertools import cycle
from math import gcd
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import scipy

RATE = 16_000  # samples per second
SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "A network listens to a long recording, half a thousand samples at a time.",
    "What it has heard so far is its state, which goes on from one block to the next.",
    "Please mind the gap between the train and the platform.",
    "Nobody had told the gardener that the roses were made of paper.",
)
VOICES = ("en-gb", "en-us+f3", "en-gb+m7", "en-us+f2", "en-gb+m3")
# The first three formants of some vowels in Hz (Peterson and Barney 1952, men).
VOWELS = ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480))
Section = tuple[str, float, float]  # the kinds of sound, the start and the end in seconds


def read_wave(path: str | Path) -> np.ndarray:
    """Read a wave file of 16 bits. Return one channel of samples from -1 to 1, at 16 kHz."""
    try:
        with wave.open(str(path)) as file:
            data, channels = file.readframes(file.getnframes()), file.getnchannels()
            rate, bits = file.getframerate(), 8 * file.getsampwidth()
    except (OSError, EOFError, wave.Error) as error:
        raise SystemExit(f"{path} is no wave file: {error}") from None
    if bits != 16 or not data:
        raise SystemExit(f"{path} has {len(data)} bytes of {bits} bits: some of 16 are needed")
    samples = (np.frombuffer(data, "<i2") / 2**15).reshape(-1, channels).mean(axis=1)
    common = gcd(rate, RATE)
    return scipy.signal.resample_poly(samples, RATE // common, rate // common).astype(np.float32)


def spoken(number: int, random: np.random.Generator) -> np.ndarray:
    """Return the sound of a spoken sentence."""
    sentence, voice = SENTENCES[number % len(SENTENCES)], VOICES[number % len(VOICES)]
    if shutil.which("espeak-ng") is None:
        return buzzed(4.0, pitch=100 + 15 * number, random=random)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "speech.wav"
        subprocess.run(["espeak-ng", "-v", voice, "-s", "150", "-w", path, sentence], check=True)
        return read_wave(path)


def buzzed(seconds: float, pitch: float, random: np.random.Generator) -> np.ndarray:
    """Return a sound that a network takes for speech: syllables of vowels with a falling pitch."""
    time = np.arange(int(seconds * RATE)) / RATE
    frequency = pitch * (1 + 0.08 * np.sin(13 * time) - 0.1 * time / seconds)
    pulses = np.diff(np.floor(np.cumsum(frequency) / RATE), prepend=0.0)
    pulses += 0.003 * random.normal(size=len(time))
    loud = np.clip(np.sin(2 * np.pi * 3.6 * time), 0, None) ** 0.6
    voice = np.zeros(len(time))
    for number, formants in enumerate(VOWELS):
        vowel = pulses
        for formant, width in zip(formants, (80, 110, 160), strict=True):
            radius = np.exp(-np.pi * width / RATE)
            pole = 2 * radius * np.cos(2 * np.pi * formant / RATE)
            vowel = scipy.signal.lfilter([1.0], [1.0, -pole, radius**2], vowel)
        turn = np.floor(3.6 * time) % len(VOWELS) == number
        voice += turn * vowel / np.abs(vowel).max()
    hiss = np.diff(random.normal(size=len(time) + 1)) * (loud < 0.05) * 0.03
    return 0.5 * voice * loud + hiss


def music(seconds: float, random: np.random.Generator) -> np.ndarray:
    """Return music: two chords a second of plucked strings (Karplus and Strong 1983)."""
    found = np.zeros(int(seconds * RATE))
    chords = cycle(((220, 277, 330), (196, 247, 294), (175, 220, 262), (165, 208, 247)))
    for begin, chord in zip(range(0, len(found), RATE // 2), chords, strict=False):
        for pitch in (*chord, chord[0] / 2):
            period = int(RATE / pitch)
            pluck = np.zeros(min(RATE, len(found) - begin))
            pluck[:period] = random.uniform(-1, 1, period)[: len(pluck)]
            string = np.zeros(period + 2)
            string[0], string[period:] = 1.0, -0.498
            found[begin : begin + len(pluck)] += scipy.signal.lfilter([1.0], string, pluck)
    return 0.3 * found / np.abs(found).max()


def recording() -> tuple[np.ndarray, list[Section]]:
    """Return the samples of a minute and a half of sound, and its sections in order."""
    random, parts, sections, at = np.random.default_rng(0), [], [], 0.0
    order = (
        "silence speech noise speech music speech+noise silence speech+music tone speech silence"
    )
    for number, name in enumerate(order.split() * 2):
        part = spoken(number, random) if "speech" in name else np.zeros(int(3.5 * RATE))
        seconds = len(part) / RATE
        part = 0.5 * part / max(np.abs(part).max(), 1e-9)
        part = part + 1e-4 * random.normal(size=len(part))
        if "noise" in name:
            part += 0.05 * random.normal(size=len(part))
        if "music" in name:
            part += (0.3 if name == "speech+music" else 1.0) * music(seconds, random)
        if "tone" in name:
            part += 0.2 * np.sin(2 * np.pi * 1000 * np.arange(len(part)) / RATE)
        parts.append(part)
        sections.append((name, at, at + seconds))
        at += seconds
    return np.concatenate(parts).astype(np.float32), sections
