"""Make the archive for `speech.py`: Silero VAD with the weights that its authors publish.

    pip install --no-deps silero-vad
    python examples/silero.py [--save out/silero_vad.nnef.tgz]

The package `silero-vad` (MIT licence) contains the weights for 16 kHz in the safetensors format.
The network is written below as an NNEF document. A frame of sound goes through a Fourier transform,
which is computed by a convolution, through four more convolutions, and through one cell of an LSTM,
whose state is both inputs and outputs.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import nnef_jax
from common import Options

WEIGHTS = "silero_vad_16k.safetensors"
ORIGIN = "pip install --no-deps silero-vad"

GRAPH = """\
version 1.0;
extension KHR_enable_operator_expressions;

# 512 samples at 16 kHz behind the last 64 of the frame before: the probability of speech in them.
graph silero_vad(audio, h0, c0) -> (prob, h, c)
{
    audio = external<scalar>(shape = [1,576]);
    h0 = external<scalar>(shape = [1,128]);
    c0 = external<scalar>(shape = [1,128]);

    # The real and imaginary parts of 129 frequencies at 4 times.
    stft = variable<scalar>(shape = [258,1,256], label = 'stft_conv.weight');
    row = unsqueeze(audio, axes = [1]);
    padded = pad(row, padding = [(0,0), (0,0), (0,64)], border = 'reflect');
    parts = conv(padded, stft, stride = [128], padding = [(0,0)]);
    real = slice(parts, axes = [1], begin = [0], end = [129]);
    imaginary = slice(parts, axes = [1], begin = [129], end = [258]);
    magnitude = sqrt(real * real + imaginary * imaginary);

    filter1 = variable<scalar>(shape = [128,129,3], label = 'conv1.weight');
    bias1 = variable<scalar>(shape = [1,128], label = 'conv1.bias');
    conv1 = relu(conv(magnitude, filter1, bias1, padding = [(1,1)]));
    filter2 = variable<scalar>(shape = [64,128,3], label = 'conv2.weight');
    bias2 = variable<scalar>(shape = [1,64], label = 'conv2.bias');
    conv2 = relu(conv(conv1, filter2, bias2, stride = [2], padding = [(1,1)]));
    filter3 = variable<scalar>(shape = [64,64,3], label = 'conv3.weight');
    bias3 = variable<scalar>(shape = [1,64], label = 'conv3.bias');
    conv3 = relu(conv(conv2, filter3, bias3, stride = [2], padding = [(1,1)]));
    filter4 = variable<scalar>(shape = [128,64,3], label = 'conv4.weight');
    bias4 = variable<scalar>(shape = [1,128], label = 'conv4.bias');
    conv4 = relu(conv(conv3, filter4, bias4, padding = [(1,1)]));

    # The gates of the cell are 128 rows each: input, forget, cell, output.
    of_input = variable<scalar>(shape = [512,128], label = 'lstm_cell.weight_ih');
    of_state = variable<scalar>(shape = [512,128], label = 'lstm_cell.weight_hh');
    bias_ih = variable<scalar>(shape = [1,512], label = 'lstm_cell.bias_ih');
    bias_hh = variable<scalar>(shape = [1,512], label = 'lstm_cell.bias_hh');
    features = squeeze(conv4, axes = [2]);
    gates = linear(features, of_input, bias_ih) + linear(h0, of_state, bias_hh);
    i = sigmoid(slice(gates, axes = [1], begin = [0], end = [128]));
    f = sigmoid(slice(gates, axes = [1], begin = [128], end = [256]));
    g = tanh(slice(gates, axes = [1], begin = [256], end = [384]));
    o = sigmoid(slice(gates, axes = [1], begin = [384], end = [512]));
    c = f * c0 + i * g;
    h = o * tanh(c);

    last = variable<scalar>(shape = [1,128], label = 'final_conv.weight');
    last_bias = variable<scalar>(shape = [1,1], label = 'final_conv.bias');
    prob = sigmoid(linear(relu(h), last, last_bias));
}
"""


def published() -> dict[str, np.ndarray]:
    """Return the weights from the package `silero-vad`, without importing it (it needs torch)."""
    found = importlib.util.find_spec("silero_vad")
    files = [Path(p, "data", WEIGHTS) for p in (found and found.submodule_search_locations) or ()]
    if not any(file.is_file() for file in files):
        raise SystemExit(f"needs {WEIGHTS}, in the package silero-vad: {ORIGIN}")
    from safetensors.numpy import load_file

    return load_file(next(file for file in files if file.is_file()))


def make(weights: Mapping[str, Any], path: str | Path) -> None:
    """Write the network to `path`. The keys of `weights` are the names in the package."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for label, array in weights.items():
            # A bias is a row in NNEF. The last convolution has windows of one sample, and becomes a
            # matrix.
            shape = array.shape[:2] if label.startswith("final") else array.shape
            shaped = array.reshape((1, -1) if array.ndim == 1 else shape)
            nnef_jax.write_tensor(folder / f"{label}.dat", shaped)
        (folder / "graph.nnef").write_text(GRAPH)
        nnef_jax.load(folder).save(path, overwrite=True)


def main(argv: Sequence[str] | None = None) -> None:
    options = Options(__doc__, ["safetensors"], save="silero_vad.nnef.tgz")
    args = options.read(argv)
    make(published(), args.save)
    print(f"wrote {args.save}")


if __name__ == "__main__":
    main()
