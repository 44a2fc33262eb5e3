"""`load`: from a path, bytes or file to a `Model`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal

import jax
from numpy.typing import ArrayLike, DTypeLike

from lowering import Registry
from nnef_jax.execution.execution import Execution
from nnef_jax.execution.run_options import RunKeywords, RunOptions
from nnef_jax.formats.base import Expand, Progress
from nnef_jax.limits import Limits
from nnef_jax.model import Model
from nnef_jax.options import require_flags
from nnef_jax.reading import Quantization, ReadingOptions, Source, with_network


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
        source: a folder, a `graph.nnef`, an archive (zip, or tar: plain, gz, bz2, xz), the bytes of
            one, or an open binary file; an `.onnx`; of OpenVINO's networks an `.xml`, its `.bin`
            beside it; what its converter reads: docs/onnx.md.
        input_shapes: shapes by input name instead of the document's. None is an extent that each
            call may choose: the network is compiled once for each choice. 0 is an empty axis. An
            open extent that has a name, as in ONNX, may be given by it: `{"batch": 8}`.
        values: values by name of inputs that are fixed: these are no inputs any more, and what
            follows from them is computed here. So an axis, a shape or a count that a network takes
            as an input may decide how it is compiled.
        dtype: what scalar tensors are computed in, a name or a numpy or jax dtype: float32,
            bfloat16, float16, float64 (needs jax's x64 mode). Integer tensors are int32.
        quantization: "apply" rounds each tensor that graph.quant names once it is computed,
            "ignore" rounds none. "ste" computes what "apply" does, with straight-through
            derivatives: of what rounds it is 1 within the range of the levels and 0 outside, so
            that a quantised network can be trained. Variables that are stored quantised become real
            numbers in any case.
        expand: "auto" keeps compound operations of the standard whole where there is a rule for
            them. "all" expands them to primitives by their definitions, instead of a user's rules
            too; in tract's dialect those that it computes as the standard does, and can write.
        dialect: "nnef" reads the document strictly by NNEF 1.0, "tract" as tract does, which may be
            told of its registries by flags of the command line alone; "auto" goes by the text.
        state: inputs by name with the outputs that take their place in the next call. They become
            the network's state, which starts with zeros: `model.step` and `model.scan` pass it on.
        rules: rules of one's own (`nnef_jax.Registry`) for operations, as the document spells them:
            docs/extending.md.
        unused: True has in `model.params` also the variables that neither outputs nor states depend
            on. Otherwise they stay on the host; `apply`, `step`, `scan` and `save` take them too.
        limits: bounds on what is read.
        progress: called with the numbers of variables read and of all, before each of them.
        weights: the `.bin` of OpenVINO's networks where it is not beside the `.xml`: a path, its
            bytes, or an open binary file. For networks of NNEF, safetensors by the labels of
            variables: they take the place of tensor files, which need not be there.

    Args: How to run it. `Model.with_options` changes these, and reads nothing again.
        precision: of matrix products and convolutions, as in `jax.lax.dot`; None is jax's default.
            "highest" gains digits on TPUs and GPUs, and costs time there. "BF16_BF16_F32"
            multiplies real numbers in bfloat16 and sums in float32: docs/numerics.md says how
            exactly. It gains time on CPUs with such instructions, and costs digits.
        optimize: True chooses layouts and kernels for the platform, CPUs today. It gains time in
            each call, and costs time to compile; results and derivatives differ by rounding. False
            computes each operation as its rule is written. A function of one's own gets the kernels
            of the platform that it is lowered or exported for; with open extents it is as written.
            A pass that fails is left out with a warning; "strict" raises RuntimeError, and checks
            what each pass makes.
        autotune: True tries the compiler's options at the first call of each kind and shape, and
            keeps the fastest. It costs a second or two there, and may gain time in each call. Only
            CPUs have such a choice.
        donate_state: True makes `step` write the new state into the memory of the one it is given.
            It gains a copy of the state, and costs that the arrays given cannot be read afterwards.
        cache_dir: a folder, made where there is none, that keeps what is compiled for other
            processes. It gains their time to compile, and costs disk. It holds pickled objects and
            machine code: it must be as trusted as the program itself. A damaged file is made again,
            a read-only folder serves with what it has, any file may be deleted at any time. It
            excludes `rules`: nothing tells when they change.
        measure: True chooses kernels for a CPU by the rates of the host. It costs a second when the
            first large network is compiled, and gains time in calls on hosts unlike the usual ones.
            Rates are kept in `cache_dir`, or else in the user's cache folder: docs/performance.md.
            False chooses by shipped rates.
        max_executables: how many compiled functions are kept in memory, one a kind of call, shape
            and device: those that were used last. What is prepared for them alone goes with them. A
            small number gains memory, and costs compilations of shapes that return.

    A network in a folder or a plain tar archive is memory-mapped, and a CPU computes from the map.
    While the model is in use its files may be deleted, or replaced by renaming others to their
    names, as `save` does; they must not be written to or cut short.

    Raises:
        FileNotFoundError: there is nothing at the path.
        TypeError, ValueError: an argument is of a wrong type or value, or two do not go together.
        InputError: `cache_dir` is empty, no folder, or cannot be made or read.
        NnefError: something is wrong with the network; the message says what, where, and what to
            do.

    >>> model = nnef_jax.load("examples/digits/model")
    >>> probabilities = model(images)
    """
    require_flags(unused=unused)
    keywords: RunKeywords = {
        "precision": precision, "optimize": optimize, "autotune": autotune,
        "donate_state": donate_state, "cache_dir": cache_dir, "measure": measure,
        "max_executables": max_executables,
    }  # fmt: skip
    before = RunOptions(unused=unused, straight_through=quantization == "ste")
    run = before.with_keywords(keywords, has_rules=rules is not None)
    reading = ReadingOptions(
        input_shapes,
        values,
        dtype,
        quantization,
        expand,
        dialect,
        state,
        rules,
        limits,
        progress,
        weights,
    )
    return with_network(source, reading, lambda x: Model(Execution.loaded(x, run)))
