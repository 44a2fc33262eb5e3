"""The methods of a model that write a network to a file: an NNEF archive, or a function of jax."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Literal

from nnef_jax.calls.arguments import Params, Sample, State, require_values
from nnef_jax.execution.runnable import Runnable
from nnef_jax.options import require_flags, require_path, require_samples


class Writable(Runnable):
    """The part of `nnef_jax.Model` that writes the network to files: `save` and `export`."""

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        params: Params | None = None,
        state: State | None = None,
        quantize: Iterable[Sample] | str | None = None,
        overwrite: bool = False,
    ) -> None:
        """Write the network as an NNEF archive, by default with the model's parameters and state.

        Args:
            path: a folder to create, or an archive if it ends in .tar, .tgz, .tar.gz or .tar.xz.
                Arrays that are spread over several hosts can only be written to a .tar; all hosts
                make this call.
            params: a dict from labels to arrays, as the property `params` is.
            state: a dict from labels to arrays, as `init_state` returns it. The arrays are the
                initial state after loading the archive.
            quantize: sample inputs, or a text that `nnef_jax.calibrate` returned. The text is
                written as `graph.quant`, and for sample inputs `nnef_jax.calibrate` makes the text.
                By default the `graph.quant` of the source is written again if there is one.
            overwrite: whether an existing path is replaced; otherwise it raises FileExistsError.
        """
        from nnef_jax.saving.archives import write_network

        require_path("path", path)
        require_flags(overwrite=overwrite)
        stored = self._execution.arrays
        definition = self._execution.definition
        if state is None:
            state = stored.initial_state()
        if params is None:
            params = stored.parameters()
        checked_state = definition.check_state(state, definition.states)
        checked_params = definition.check_params(params, all=True, stored=True)
        trees = {"state": checked_state, "params": checked_params}
        require_values("save", trees, must_be_on_host=False)
        network = definition.network
        arrays = {**stored.select(network.unused), **checked_state, **checked_params}
        if quantize is None or isinstance(quantize, str):
            # None means that the graph.quant of the source is written again.
            text = quantize
        else:
            require_samples("quantize", quantize)
            from nnef_jax.measure.calibration import calibrate

            text = calibrate(self, quantize)
        write_network(path, network, arrays, text, overwrite=overwrite)

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        entry: Literal["apply", "step", "scan"] = "apply",
        platforms: Sequence[str] = ("cpu", "cuda", "rocm", "tpu"),
        batch: str | None = "b",
        constraints: Sequence[str] = (),
        vjp_order: int = 0,
        params: Literal["inside", "beside"] = "inside",
        overwrite: bool = False,
    ) -> None:
        """Write the network as one file that jax runs without nnef_jax (see docs/export.md).

        Args:
            path: the file to write.
            entry: the method to export. The first argument of the function is a dict from labels to
                parameters. For "step" and "scan" the second argument is a dict from labels to
                states. The inputs follow in the order of the graph. Several outputs are a tuple.
            platforms: the platforms that can run the file: some of cpu, cuda, rocm, tpu.
            batch: the symbol for the first axis of all inputs whose first axis is open. If it is
                None, each of these axes has its own symbol. Other open extents always have their
                own symbols: 'x_2' for axis 2 of x, the document's names in tract's dialect, and
                'time' for the cycles of a scan.
            constraints: constraints between open extents, such as 'x_2 >= 8' or 'x_2 == z_2'.
            vjp_order: how many times the function can be differentiated in reverse mode: 0, 1 or 2.
            params: "inside" stores the parameters and the initial state in the file, which is a
                .npz. "beside" stores neither, and the file is what `jax.export` serialises.
            overwrite: whether an existing path is replaced; otherwise it raises FileExistsError.

        Raises InputError for wrong arguments. Raises UnsupportedError if jax cannot export the
        network, or if the extra `export` is not installed.

        >>> model.export("net.npz", platforms=("cpu", "tpu"), vjp_order=1)
        """
        from nnef_jax.saving.export import export

        arguments = entry, platforms, batch, constraints, vjp_order, params, overwrite
        export(self._execution, path, *arguments)
