"""Writes the archives and the expected results of this folder, with PyTorch and torch_to_nnef.

    pip install torch torch_to_nnef
    PYTHONHASHSEED=0 python tests/torch_networks/export.py    all networks
    PYTHONHASHSEED=0 python tests/torch_networks/export.py gpt lstm

The hash seed makes the names inside archives the same each time. For each network of networks.py
two files:

    NAME.nnef.tgz   the archive as torch_to_nnef writes it, less the date of the export
    NAME.npz        for each run, with its number before each name:
                        0/input/NAME        inputs
                        0/output/NAME       what torch computes, in 32 bits on the CPU
                        0/weight/NAME       random numbers w of the shape of the output
                        0/gradient/NAME     derivatives of the sum of w * output in a float input
                        0/parameter/LABEL   the same in a variable that is a parameter, of run 0

A variable of the archive need not have the shape of torch's parameter: the exporter splits the
gates of recurrent layers, transposes and adds axes. All values of a network's parameters are made
different from one another, so that each number of a variable tells which number of which parameter
it is, and its derivative is that number's.
"""

from __future__ import annotations

import copy
import gzip
import io
import math
import re
import sys
import tarfile
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from networks import NETWORKS, Network
from torch import Tensor, nn
from torch.ao.quantization import QConfigMapping, default_qconfig
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx
from torch_to_nnef.compress import quantize_weights_min_max_Q4_0
from torch_to_nnef.export import export_model_to_nnef
from torch_to_nnef.inference_target import TractNNEF
from torch_to_nnef.nnef_io import writer
from torch_to_nnef.tensor import QTensor

FOLDER = Path(__file__).resolve().parent
TRACT = "0.22.1"


def write(name: str, network: Network) -> None:
    """Write both files of a network."""
    module = network.make().eval()
    randomise(module, torch.Generator().manual_seed(0))
    runs = network.runs(torch.Generator().manual_seed(1))
    exported = copy.deepcopy(module)
    if network.quantised == "q40":
        quantize_weights_min_max_Q4_0(exported)
        dequantise(exported, module)
    elif network.quantised == "int8":
        module = exported = in_8_bits(module, runs)
    members = archive(network, exported, runs[0])
    variables = {
        path.removesuffix(".dat"): decoded(data)
        for path, data in members.items()
        if path.endswith(".dat")
    }
    arrays: dict[str, np.ndarray] = {}
    generator = torch.Generator().manual_seed(2)
    for index, inputs in enumerate(runs):
        results = run(network, module, inputs, generator)
        if index == 0:
            gradients = parameter_gradients(module, variables)
            results |= {f"parameter/{label}": value for label, value in gradients.items()}
        arrays |= {f"{index}/{key}": array for key, array in results.items()}
    with (
        gzip.GzipFile(FOLDER / f"{name}.nnef.tgz", "wb", mtime=0) as file,
        tarfile.open(fileobj=file, mode="w") as tar,
    ):
        for path, data in sorted(members.items()):
            info = tarfile.TarInfo(path)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    np.savez_compressed(FOLDER / f"{name}.npz", **arrays)


def randomise(module: nn.Module, generator: torch.Generator) -> None:
    """Random parameters and statistics, no two numbers equal, that keep activations about 1."""
    norms = nn.BatchNorm1d | nn.BatchNorm2d | nn.LayerNorm | nn.GroupNorm | nn.RMSNorm
    tensors = []
    for layer in module.modules():
        named = [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]
        for name, tensor in named:
            if not tensor.is_floating_point():
                continue
            noise = torch.randn(tensor.shape, generator=generator)
            if name == "running_var":
                value = 0.5 + noise.square()
            elif isinstance(layer, norms):
                value = 0.2 * noise + (1.0 if name == "weight" else 0.0)
            elif tensor.ndim == 1:
                value = 0.2 * noise
            elif isinstance(layer, nn.Embedding) or name in ("class_token", "positions"):
                value = 0.7 * noise
            else:
                value = noise / math.sqrt(math.prod(tensor.shape[1:]))
            tensor.data = value
            tensors.append(tensor.data)
    values = _distinct(torch.cat([tensor.flatten() for tensor in tensors]).numpy())
    sizes = np.cumsum([tensor.numel() for tensor in tensors])[:-1]
    for tensor, part in zip(tensors, np.split(values, sizes), strict=True):
        tensor.copy_(torch.from_numpy(part).view(tensor.shape))


def _distinct(values: np.ndarray) -> np.ndarray:
    """Return the values, with equal ones moved apart by the least difference."""
    order = values.argsort()
    values = values[order]
    for i in range(1, len(values)):
        if values[i] <= values[i - 1]:
            values[i] = np.nextafter(values[i - 1], np.float32(np.inf))
    return values[order.argsort()]


def dequantise(quantised: nn.Module, module: nn.Module) -> None:
    """Give a module the weights that its quantised copy computes with."""
    for name, parameter in quantised.named_parameters():
        if isinstance(parameter, QTensor):
            module.get_parameter(name).data = parameter.decompress()


def in_8_bits(module: nn.Module, samples: list[tuple[Tensor, ...]]) -> nn.Module:
    """The network in 8 bits, the ranges of which are those over the samples."""
    prepared = prepare_fx(module, QConfigMapping().set_global(default_qconfig), samples[0])
    for sample in samples:
        prepared(*sample)
    return convert_fx(prepared)


def archive(network: Network, module: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, bytes]:
    """Return the members of the archive of torch_to_nnef."""
    # Without this, numbers that the network has as tensors are NamedTensor(...) in graph.quant.
    printable = writer._printable_value
    plain = lambda value: printable(value.item() if isinstance(value, Tensor) else value)  # noqa: E731
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(sys, "argv", []),
        mock.patch.object(writer, "_printable_value", plain),
    ):
        # The exporter asks the program tract for its version even where it does not run it.
        tract = Path(folder) / "tract"
        tract.write_text(f"#!/bin/sh\necho tract {TRACT}\n")
        tract.chmod(0o755)
        path = export_model_to_nnef(
            module,
            inputs,
            Path(folder) / "network.nnef.tgz",
            TractNNEF(
                TRACT,
                check_io=False,
                specific_tract_binary_path=tract,
                dynamic_axes=network.dynamic,
                dump_identity_properties=False,
            ),
            input_names=list(network.inputs),
            output_names=list(network.outputs),
            compression_level=9,
        )
        with tarfile.open(path) as tar:
            members = {m.name.removeprefix("./"): tar.extractfile(m) for m in tar if m.isfile()}
            contents = {name: file.read() for name, file in members.items() if file is not None}
    text = contents["graph.nnef"].decode()
    contents["graph.nnef"] = re.sub(r'    \("(export_date|py_version)".*\n', "", text).encode()
    return contents


def decoded(data: bytes) -> np.ndarray:
    """Return the numbers of a tensor file, dequantised if it is Q4_0."""
    rank, *extents = np.frombuffer(data, "<u4", 9, 8)
    bits, kind = np.frombuffer(data, "<u4", 1, 44)[0], data[48:52]
    shape = tuple(int(extent) for extent in extents[:rank])
    if kind == b"\x40\x30RT":
        blocks = np.frombuffer(data, [("scale", "<f2"), ("items", "u1", 16)], offset=128)
        items = np.concatenate([blocks["items"] & 15, blocks["items"] >> 4], axis=1) - np.float32(8)
        return (items * blocks["scale"].astype(np.float32)[:, None]).reshape(shape)
    if bits == 1:
        count = math.prod(shape)
        return np.unpackbits(np.frombuffer(data, "u1", offset=128))[:count].reshape(shape)
    letter = {0: "f", 1: "u", 2: "u", 3: "i", 4: "i", 5: "b"}[kind[0]]
    return np.frombuffer(data, f"<{letter}{bits // 8}", offset=128).reshape(shape)


def run(
    network: Network, module: nn.Module, inputs: tuple[Tensor, ...], generator: torch.Generator
) -> dict[str, np.ndarray]:
    """Return the members of the .npz for one run."""
    module.zero_grad()
    arrays: dict[str, Tensor] = {}
    for name, value in zip(network.inputs, inputs, strict=True):
        arrays[f"input/{name}"] = value.requires_grad_(value.is_floating_point())
    results = module(*inputs)
    total = torch.zeros(())
    results = (results,) if isinstance(results, Tensor) else results
    for name, value in zip(network.outputs, results, strict=True):
        weight = torch.randn(value.shape, generator=generator)
        total = total + (value * weight).sum()
        arrays |= {f"output/{name}": value, f"weight/{name}": weight}
    if total.requires_grad:  # not in 8 bits
        total.backward()
    for name, value in zip(network.inputs, inputs, strict=True):
        if value.grad is not None:
            arrays[f"gradient/{name}"] = value.grad
    return {key: value.detach().numpy() for key, value in arrays.items()}


def parameter_gradients(
    module: nn.Module, variables: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the derivatives in variables that are parameters of the module, by label."""
    sources = {
        name: (parameter.detach().numpy(), parameter.grad.numpy())
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
    for name, layer in module.named_modules():
        if isinstance(layer, nn.RNNBase):  # the exporter adds the two biases of a layer
            for label in [n for n, _ in layer.named_parameters() if n.startswith("bias_ih")]:
                first, second = (sources[f"{name}.{n}"] for n in (label, label.replace("ih", "hh")))
                sources[f"{name}.{label} + hh"] = (first[0] + second[0], first[1])
    if not sources:
        return {}
    values = np.concatenate([value.ravel() for value, _ in sources.values()])
    slopes = np.concatenate([slope.ravel() for _, slope in sources.values()])
    owners = np.repeat([*sources], [value.size for value, _ in sources.values()])
    order = values.argsort()
    found, seen = {}, np.zeros(values.shape, bool)
    for label, array in variables.items():
        if label in sources and np.array_equal(sources[label][0], array):
            # Dequantised numbers are equal to others, but quantised weights keep name and shape.
            place = np.flatnonzero(owners == label).reshape(array.shape)
        else:
            place = order[np.searchsorted(values[order], array).clip(max=values.size - 1)]
        if array.dtype == np.float32 and array.size and np.array_equal(values[place], array):
            assert not seen[place].any(), f"{label} is in the archive twice"
            seen[place] = True
            found[label] = slopes[place]
    others = [label for label in variables if label not in found]
    print("variables that are no parameters:", ", ".join(others) or "none")
    print("parameters that are no variables:", ", ".join(np.unique(owners[~seen])) or "none")
    return found


def main() -> None:
    for name in sys.argv[1:] or NETWORKS:
        print(f"-- {name}")
        write(name, NETWORKS[name])


if __name__ == "__main__":
    main()
