"""Writes a network to a file: an NNEF archive, or a function of jax."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Literal, cast

from nnef_jax.calls.arguments import Params, Sample, State, require_values
from nnef_jax.execution.runnable import Runnable
from nnef_jax.options import require_flags, require_path, require_samples


class Writable(Runnable):
    """Writes the network to files: the part of `nnef_jax.Model` with `save` and `export`."""

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
            path: a folder to make, or an archive by its suffix (.tar, .tgz, .tar.gz, .tar.xz).
                Arrays over several hosts are written to a .tar, which all hosts call together.
            params: arrays by label, as in `params`.
            state: arrays by label, as in `init_state`: the initial state after loading the archive.
            quantize: sample inputs, from which `nnef_jax.calibrate` computes `graph.quant`, or the
                text that it returned. Without them a `graph.quant` of the source is written again.
            overwrite: replace an existing path, which otherwise raises FileExistsError.
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
        checked = {
            "state": definition.check_state(state, definition.states),
            "params": definition.check_params(params, all=True, stored=True),
        }
        require_values("save", checked, here=False)
        network = definition.network
        arrays = {**stored.select(network.unused), **checked["state"], **checked["params"]}
        text = quantize if isinstance(quantize, str) else None  # None: as it was read
        if quantize is not None and text is None:
            require_samples("quantize", quantize)
            from nnef_jax.measure.calibration import calibrate

            text = calibrate(self, cast("Iterable[Sample]", quantize))
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
        """Write the network as one file that jax runs without nnef_jax: docs/export.md.

        Args:
            path: the file to make.
            entry: the method to export. The function takes parameters by label, for "step" and
                "scan" the state by label, then the inputs in the order of the graph. If there are
                several outputs they are a tuple.
            platforms: the platforms that can run the file: some of cpu, cuda, rocm, tpu.
            batch: the symbol of the open extent of first axes, which is the same for all inputs.
                With None each of these has a separate symbol, as other open extents have: 'x_2' for
                axis 2 of x, the document's names in tract's dialect, 'time' for the cycles of a
                scan.
            constraints: constraints between open extents, such as 'x_2 >= 8' or 'x_2 == z_2'.
            vjp_order: how many times the function can be differentiated in reverse mode: 0 to 2.
            params: "inside" stores the parameters and the initial state in the file, a .npz;
                "beside" stores neither, and the file is what `jax.export` serialises.
            overwrite: replace an existing path, which otherwise raises FileExistsError.

        Raises InputError for wrong arguments. Raises UnsupportedError if jax cannot export the
        network, or if the extra `export` is missing.

        >>> model.export("net.npz", platforms=("cpu", "tpu"), vjp_order=1)
        """
        from nnef_jax.saving.export import export

        arguments = entry, platforms, batch, constraints, vjp_order, params, overwrite
        export(self._execution, path, *arguments)
