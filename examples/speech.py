"""Find the speech in a long recording, by a recurrent network that reads it block by block.

    pip install --no-deps silero-vad          # the weights, MIT licence
    python examples/speech.py [SIGNAL.wav] [--network ARCHIVE] [--out out/speech.png]

The network is Silero VAD. Its inputs are `audio` (1, 576) and the state `h0` (1, 128) and `c0` (1,
128). Its outputs are the probability of speech `prob` (1, 1) and the next state, `h` and `c`.
`silero.py` writes the network with the weights that its authors publish. An archive that
torch_to_nnef exports from their PyTorch network can be used too.

A frame has 512 new samples at 16 kHz, which follow the last 64 samples of the previous frame. A
block is ten seconds, and is computed by one `lax.scan` over its frames. The scan continues from the
state that the previous block has left. Without SIGNAL, the script makes a recording of speech,
noise and music by `recording.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import nnef_jax
from common import BLUE, GREEN, GREY, RED, Options, picture
from recording import RATE, Section, read_wave, recording
from silero import make, published

# New samples in a frame, samples of the previous frame before them, and frames in a block.
FRAME, CONTEXT, BLOCK = 512, 64, 312


def load(path: str | Path | None) -> nnef_jax.Model:
    """Load the network. Its state has the inputs of the LSTM, which the outputs then replace."""
    with TemporaryDirectory() as folder:
        if path is None:
            path = Path(folder) / "silero_vad.nnef.tgz"
            make(published(), path)
        try:
            return nnef_jax.load(path, state={"h0": "h", "c0": "c"})
        except (OSError, nnef_jax.NnefError) as error:
            raise SystemExit(
                f"{error}\nThe network to give is that of examples/silero.py"
            ) from None


def frames(signal: np.ndarray) -> np.ndarray:
    """Cut a signal (samples) into frames (count, 1, 576).

    Each frame begins with the last 64 samples of the previous frame.

    The last block is filled up with silence.
    """
    count = -(-len(signal) // (FRAME * BLOCK)) * BLOCK
    padded = np.pad(signal, (CONTEXT, count * FRAME - len(signal)))
    return np.lib.stride_tricks.sliding_window_view(padded, CONTEXT + FRAME)[::FRAME, None]


def listen(model: nnef_jax.Model, signal: np.ndarray) -> Iterator[np.ndarray]:
    """Yield, for each block, an array with the probability of speech in each of its frames."""
    pieces, state = frames(signal), model.init_state()
    for start in range(0, len(pieces), BLOCK):
        found, state = model.scan(pieces[start : start + BLOCK], state=state)
        yield np.asarray(found)[:, 0, 0]


def stretches(found: np.ndarray, threshold: float = 0.5) -> list[tuple[float, float]]:
    """Return the starts and ends, in seconds, of parts whose probability exceeds a threshold."""
    above = np.concatenate([[False], found > threshold, [False]])
    edges = np.flatnonzero(np.diff(above.astype(int))) * FRAME / RATE
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def draw(path: Path, signal: Any, found: Any, sections: Sequence[Section]) -> None:
    """Draw the signal with the kinds of its sections, and below it the probability of speech."""
    colors = {"speech": GREEN, "noise": GREY, "music": "#9333ea", "tone": "#ca8a04"}
    with picture(path, 10, 4, [["signal"], ["found"]], sharex=True) as axes:
        above, below = axes["signal"], axes["found"]
        time = np.arange(len(signal)) / RATE
        above.plot(time, signal, color="#374151", linewidth=0.2)
        for kinds, begin, end in sections:
            parts = [kind for kind in kinds.split("+") if kind in colors]
            for i, kind in enumerate(parts):
                low, high = i / len(parts), (i + 1) / len(parts)
                above.axvspan(begin, end, low, high, color=colors[kind], alpha=0.3, linewidth=0)
        if sections:
            for kind, color in colors.items():
                above.axvspan(0, 0, color=color, alpha=0.3, linewidth=0, label=kind)
            above.legend(ncols=4, loc="lower right", bbox_to_anchor=(1, 1))
        above.set(ylabel="signal", title="Finding speech in a long recording")
        times = (np.arange(len(found)) + 0.5) * FRAME / RATE
        below.plot(times, found, color=BLUE, linewidth=1)
        below.fill_between(times, found, color=BLUE, alpha=0.2, linewidth=0)
        below.axhline(0.5, color=RED, linewidth=0.8, linestyle="--", label="threshold")
        below.set(xlabel="seconds", ylabel="p(speech)", ylim=(0, 1.02), xlim=(0, time[-1]))


def main(argv: Sequence[str] | None = None) -> None:
    options = Options(__doc__, ["matplotlib", "safetensors"], out="speech.png")
    options.add_argument("signal", nargs="?", help="a wave file of 16 bits")
    options.add_argument("--network", help="an archive, instead of the package's weights")
    args = options.read(argv)

    signal, sections = (read_wave(args.signal), []) if args.signal else recording()
    model = load(args.network)
    begun = time.perf_counter()
    found = np.concatenate(list(listen(model, signal)))
    seconds, taken = len(signal) / RATE, time.perf_counter() - begun
    print(f"{seconds:.0f} s of sound in {taken:.1f} s, compiling included")
    middles = (np.arange(len(found)) + 0.5) * FRAME / RATE
    for wanted in dict.fromkeys(kind for kind, _, _ in sections):
        spans = [(middles > a) & (middles < b) for kind, a, b in sections if kind == wanted]
        print(f"{wanted:12}  speech in {np.mean(found[np.any(spans, axis=0)] > 0.5):4.0%} of it")
    for begin, end in [] if sections else stretches(found):
        print(f"speech from {begin:6.2f} s to {end:6.2f} s")
    draw(args.out, signal, found, sections)


if __name__ == "__main__":
    main()
