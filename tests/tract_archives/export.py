"""Writes the archives and the expected results of this folder, with tract and ONNX Runtime.

    pip install tract==0.23.9 onnx onnxruntime numpy
    python tests/tract_archives/export.py    all networks
    python tests/tract_archives/export.py recurrent shapes

For each network of networks.py two files:

    NAME.nnef.tgz   the archive as tract writes it
    NAME.npz        input/NAME          inputs
                    output/NAME         what ONNX Runtime computes
                    pulse, delay, axis  of a network for the pieces of a stream: how long these are,
                                        how many items the output is behind, and the axis of both;
                                        input and output are those of the whole stream
"""

from __future__ import annotations

import gzip
import io
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import tract
from networks import NETWORKS, PULSES, Net
from tract.transform import Pulse

FOLDER = Path(__file__).resolve().parent


def write(name: str) -> None:
    """Write both files of a network."""
    net = Net()
    NETWORKS[name](net)
    model = net.model().SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    results = dict(zip(net.outputs, session.run(None, net.inputs), strict=True))
    arrays = {f"input/{name}": array for name, array in net.inputs.items()}
    arrays |= {f"output/{name}": array for name, array in results.items()}
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "source.onnx"), Path(folder, "target.tar")
        source.write_bytes(model)
        inferred = tract.onnx().load(source)
        for index, (input, array) in enumerate(net.inputs.items()):
            shape = f"{net.shapes[input]},{array.dtype.kind}{8 * array.dtype.itemsize}"
            inferred.set_input_fact(index, inferred.fact(shape))
        inferred.analyse()
        typed = inferred.into_model()
        if name in PULSES:
            typed.transform(Pulse(PULSES[name], symbol="S"))
            (delay,), (axis,) = (
                typed.property(f"pulse.{key}").to_numpy() for key in ("delay", "output_axes")
            )
            arrays |= {"pulse": np.array(PULSES[name]), "delay": delay, "axis": axis}
        writer = tract.nnef().with_tract_extra().with_tract_transformers().with_onnx().with_pulse()
        writer.with_extended_identifier_syntax().write_model_to_tar(typed, target)
        (FOLDER / f"{name}.nnef.tgz").write_bytes(packed(target))
    np.savez_compressed(FOLDER / f"{name}.npz", **arrays)


def packed(path: Path) -> bytes:
    """Return the archive compressed, without dates, so that it is the same each time."""
    file = io.BytesIO()
    with (
        tarfile.open(path) as source,
        gzip.GzipFile(fileobj=file, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.USTAR_FORMAT) as target,
    ):
        for member in source.getmembers():
            clean = tarfile.TarInfo(member.name)
            clean.size, clean.mode = member.size, 0o644
            target.addfile(clean, source.extractfile(member))
    return file.getvalue()


if __name__ == "__main__":
    for name in sys.argv[1:] or NETWORKS:
        write(name)
