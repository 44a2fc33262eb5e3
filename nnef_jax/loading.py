"""The function `load`, which reads a network from a path, bytes or a file into a `Model`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal

import jax
from numpy.typing import ArrayLike, DTypeLike

from lowering import Registry
from nnef_jax.execution.execution import Execution
from nnef_jax.execution.run_options import RunKeywords, RunOptions, run_options
from nnef_jax.formats.base import Expand, Progress
from nnef_jax.limits import Limits
from nnef_jax.model import Model
from nnef_jax.options import require_choice, require_flags
from nnef_jax.reading.network import Network
from nnef_jax.reading.read import Quantization, ReadingOptions, Source, with_network


def load(
    source: Source,
    *,
    input_shapes: Mapping[str, Sequence[int | None] | int] | None = None,
    values: Mapping[str, ArrayLike] | None = None,
    dtype: DTypeLike = "float32",
    quantization: Quantization = "apply",
    expand: Expand = "auto",
    dialect: str = "auto",
    state: Mapping[str, str] | None = None,
    rules: Registry | None = None,
    unused: bool = False,
    limits: Limits | None = None,
    progress: Progress | None = None,
    weights: Source | None = None,
    parameters: Literal["arrays", "shapes"] = "arrays",
    precision: jax.lax.PrecisionLike = None,
    optimize: bool | Literal["strict"] = True,
    autotune: bool = False,
    donate_state: bool = False,
    cache_dir: str | os.PathLike[str] | None = None,
    measure: bool = True,
    max_executables: int = 128,
) -> Model:
    """Read an NNEF network and return it as a jitted callable.

    Args: What to read
        source: an NNEF network as a folder, as a `graph.nnef`, or as an archive (a zip file, or a
            tar file that is plain or compressed by gz, bz2 or xz); an `.onnx` file; an `.xml` file
            of OpenVINO with its `.bin` file beside it; or a file that OpenVINO's converter reads
            (docs/onnx.md). The argument is a path, the bytes of a file, or an open binary file.
        input_shapes: a dict from input names to shapes, which replace the shapes in the document.
            None in a shape is an open extent: each call chooses the extent, and the network is
            compiled once for each choice. 0 is an empty axis. If an open extent has a name in the
            document, as in ONNX, the dict can set the extent by this name: `{"batch": 8}`.
        values: a dict from input names to fixed values. A fixed input is no longer an input of the
            model, and `load` computes all tensors that depend only on fixed inputs. Use this for an
            axis, a shape or a count that a network takes as an input, because its value can then
            decide how the network is compiled.
        dtype: the dtype of scalar tensors, as a name or a numpy or jax dtype: float32,
            bfloat16, float16, float64 (needs jax's x64 mode). Integer tensors are int32.
        quantization: "apply" rounds each tensor that is listed in graph.quant. "ignore" rounds no
            tensor. "ste" rounds as "apply" does, but the derivative of rounding is 1 inside the
            range of the levels and 0 outside (straight-through), so that a quantised network can be
            trained. Variables that are stored quantised are always converted to floating-point
            numbers.
        expand: "auto" keeps a compound operation of the standard if there is a rule for it. "all"
            expands all compound operations to primitives by their definitions, even if the user has
            a rule for them. In tract's dialect "all" expands an operation only if tract can write
            it and computes it as the standard defines it.
        dialect: "nnef" reads the document strictly by NNEF 1.0, and "tract" reads it as tract does.
            With "tract" a document may use operations of tract's registries without naming the
            registries, since tract's command line can enable registries by flags. "auto" chooses
            the dialect by the content of the document.
        state: a dict from input names to output names. In the next call each of these inputs takes
            the value that its output has in this call. The inputs become the network's state, which
            starts with zeros: `model.step` and `model.scan` pass it on.
        rules: the user's rules (`nnef_jax.Registry`) for operations, by the names of the operations
            in the document: see docs/extending.md.
        unused: whether `model.params` also contains the variables that no output or state depends
            on. By default these variables stay on the host, but `apply`, `step`, `scan` and `save`
            still accept them.
        limits: bounds on the size of the network and on the work of reading it.
        progress: a function that is called before each variable is read, with the number of
            variables already read and their total number.
        weights: a path, bytes, or an open binary file. For OpenVINO it is the `.bin` file, if that
            is not beside the `.xml` file. For NNEF it is a safetensors file in which the labels of
            variables are the names. This file replaces the tensor files, which may be missing.
        parameters: "shapes" reads no parameters: `jax.ShapeDtypeStruct`s stand for them. Such a
            model has a summary, and can be sharded, lowered, and compiled for devices that are not
            attached (`nnef_jax.cost`). A call raises InputError until `with_params` gives the model
            arrays.

    Args: How to run it. `Model.with_options` changes these without reading the network again.
        precision: the precision of matrix products and convolutions, as in `jax.lax.dot`; None is
            jax's default. "highest" is more precise and slower on TPUs and GPUs. "BF16_BF16_F32"
            multiplies float32 numbers in bfloat16 and sums in float32 (details in
            docs/numerics.md). On CPUs with bfloat16 instructions this is faster and less precise.
        optimize: True chooses layouts and kernels for the platform. Today there are some for CPUs
            only. Calls are faster, compilation is slower, and results and derivatives differ by
            rounding. False computes each operation as its rule is written. A user's jitted function
            that calls the model gets the kernels of the platform for which the function is lowered
            or exported; a function with open extents is not optimised. An optimisation pass that
            fails is left out with a warning. "strict" checks the result of each pass, and raises
            RuntimeError if a pass fails.
        autotune: True tries several options of the compiler at the first call, step or scan of each
            shape, and uses the fastest. That call takes a second or two longer, and later calls may
            be faster. Only CPUs have options to try.
        donate_state: True makes `step` write the new state into the memory of the previous state.
            This saves a copy of the state, but the arrays that were passed as the state cannot be
            read after the call.
        cache_dir: a folder for compiled code, which is created if it is missing. Other processes
            that use the same folder need not compile again; the price is disk space. The folder
            contains pickled objects and machine code: it must be as trusted as the program itself.
            A damaged file is compiled again, a read-only folder is used without writing to it, and
            any file may be deleted at any time. The option does not go together with `rules`, since
            changes of rules cannot be detected.
        measure: True chooses kernels for a CPU by the speed that was measured on this host. The
            measurement takes a second when the first large network is compiled, and makes calls
            faster on unusual hosts. The measured speeds are stored in `cache_dir`, or otherwise in
            the user's cache folder: see docs/performance.md. False chooses kernels by speeds that
            are shipped with the package.
        max_executables: the largest number of compiled functions in memory. There is one for each
            method (call, step or scan), shape and device. Beyond this number the least recently
            used function is dropped, with the parameters that were prepared only for this function.
            A small number saves memory, but a shape that occurs again may have to be compiled
            again.

    A network in a folder or a plain tar archive is memory-mapped, and a CPU computes from the map.
    While the model is in use, the files of the network may be deleted, or replaced by renaming
    other files, as `save` does. The files must not be written to or truncated.

    Raises:
        FileNotFoundError: there is nothing at the path.
        TypeError, ValueError: an argument has a wrong type or value, or excludes another argument.
        InputError: `cache_dir` is empty, is no folder, or cannot be created or read.
        NnefError: the network is wrong; the message names the mistake, its place, and a remedy.

    >>> model = nnef_jax.load("examples/digits/model")
    >>> probabilities = model(images)
    """
    require_flags(unused=unused)
    require_choice("parameters", parameters, ("arrays", "shapes"))
    keywords: RunKeywords = {
        "precision": precision, "optimize": optimize, "autotune": autotune,
        "donate_state": donate_state, "cache_dir": cache_dir, "measure": measure,
        "max_executables": max_executables,
    }  # fmt: skip
    fixed_options = RunOptions(unused=unused, straight_through=quantization == "ste")
    options = run_options(fixed_options, keywords, has_rules=rules is not None)
    reading = ReadingOptions(
        input_shapes=input_shapes,
        values=values,
        dtype=dtype,
        quantization=quantization,
        expand=expand,
        dialect=dialect,
        state=state,
        rules=rules,
        limits=limits,
        progress=progress,
        weights=weights,
    )
    reads_arrays = parameters == "arrays"

    def model_of(network: Network) -> Model:
        """Return the model of a network. It has only types of arrays if no arrays are read."""
        if reads_arrays:
            return Model(Execution.loaded(network, options))
        return Model(Execution.abstract(network, options))

    return with_network(source, reading, model_of, data=reads_arrays)
