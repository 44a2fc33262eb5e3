"""Offers a network as a jitted callable, and as a pure function."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, overload

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import Tracer
from jax.sharding import Mesh, PartitionSpec
from jax.tree_util import GetAttrKey, register_pytree_with_keys
from numpy.typing import ArrayLike

from lowering.graph import Graph
from nnef_jax.call_arguments import (
    Example,
    Sample,
    copied,
    in_order,
    require_one_length,
    require_values,
)
from nnef_jax.execution.arrays import Arrays
from nnef_jax.execution.entry import Entry
from nnef_jax.execution.executables import Executables
from nnef_jax.execution.execution import Execution
from nnef_jax.execution.places import default_platform, is_traced, is_watched
from nnef_jax.execution.probe import Edit, Probe
from nnef_jax.execution.run_options import Prepared
from nnef_jax.options import names_of, require_flags, require_path, require_samples
from nnef_jax.tensor_spec import TensorSpec
from nnef_jax.trimming import is_length

if TYPE_CHECKING:
    from nnef_jax.batcher import Batcher
    from nnef_jax.sharding import ShardingPlan

Params = Mapping[str, ArrayLike]
State = Mapping[str, ArrayLike]
Edits = Mapping[str, Edit | ArrayLike]
Names = Sequence[str]


class Model:
    """An NNEF network, loaded by `nnef_jax.load`; it never changes.

    To jax it is a tree of its `params` and its initial state, and all else is static: it may be an
    argument or a result of transformed functions. It pickles with its arrays.

    A call runs it, jitted, on its own parameters. Inputs are numpy or jax arrays, by name or in the
    order of the graph. One output is an array, several are a NamedTuple with the graph's names,
    by which `y["name"]` has them too.

    `execution` is for the package itself: what runs the network, and the arrays that it runs on.
    """

    def __init__(self, execution: Execution) -> None:
        self.execution = execution

    def __reduce__(self) -> tuple[Any, ...]:
        # By value: the document, and the arrays as numpy's. What is compiled is not in it. Copies
        # are made by it too: `arrays` decide what of them is copied.
        return _of, (self.execution.arrays,)

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(str, specs)) for specs in (self.inputs, self.outputs))
        return f"<nnef_jax.Model {self.graph.name}({inputs}) -> ({outputs})>"

    def _repr_html_(self) -> str:
        from nnef_jax.viewing.card import card

        return card(self.execution.network)

    @property
    def graph(self) -> Graph:
        """Return the flat graph, with the shapes that hold before a call."""
        return self.execution.network.graph

    @cached_property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Return the inputs of a call, in order."""
        return self.execution.network.specs(self.graph.inputs)

    @cached_property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Return the outputs of a call, in order."""
        return self.execution.network.specs(self.graph.outputs, self.graph.output_names)

    @property
    def lengths(self) -> tuple[str, ...]:
        """Return names to `capture`: how many items outputs have, for `nnef_jax.trim`.

        There are some where values decide that, as of `NonZero`, none otherwise.
        """
        return tuple(filter(is_length, self.graph.aliases))

    @property
    def params(self) -> dict[str, Array]:
        """Return the parameters by label, a pytree: the first argument of `apply`.

        It is a fresh dict each time: what is assigned to it changes no model, `with_params` makes
        one of other arrays.
        Those that neither outputs nor states need are left out, unless loaded with `unused=True`.
        """
        return dict(self.execution.arrays.leaves()[0])

    @property
    def trainable(self) -> Model:
        """Return a model of booleans in the place of arrays: what an optimizer is to change.

        False stands for states, for parameters that are no real numbers, and for those that the
        `mean` or `variance` of a batch normalisation is computed from.

        >>> trained, fixed = eqx.partition(model, model.trainable)
        """
        from nnef_jax.trainable import trained_labels

        params, state = self.execution.arrays.leaves()
        labels = trained_labels(self.graph)
        booleans = {label: label in labels for label in params}, dict.fromkeys(state, False)
        return Model(self.execution.on(booleans))

    def with_params(self, params: Params, *, state: State | None = None) -> Model:
        """Return a model of the same network on other arrays, which stay where they are.

        It shares what is compiled: the first such model that is called compiles for all. They may
        be traced, on other devices or sharded; what is computed with them is then for jax to place.
        Raises InputError as `apply` does.

        >>> half = model.with_params(jax.tree.map(lambda x: x / 2, model.params))

        Args:
            params: arrays by label, as in `params`. Those that nothing reads may be given too: they
                are saved, if they are not traced.
            state: arrays by label, as in `init_state`: where calls and `init_state` start from,
                this model's own by default.
        """
        definition = self.execution.definition
        before, initial = self.execution.arrays.leaves()
        checked = definition.check_params(params, all=True)
        state = initial if state is None else definition.check_state(state, definition.states)
        arrays = {x: checked.pop(x) if x in checked else before[x] for x in definition.labels}
        # The others are compared by value, as all that is static, which traced arrays cannot be.
        unread = {label: x for label, x in checked.items() if not isinstance(x, Tracer)}
        return Model(self.execution.on((arrays, state), unread))

    def with_state_dict(self, state_dict: Mapping[str, ArrayLike], *, strict: bool = True) -> Model:
        """Return a model on the weights of a PyTorch module, of the kind that was exported.

        A name is a label, or what torch_to_nnef or torch.onnx made one of: docs/pytorch.md. Raises
        InputError for names that are missing, left over or unclear, and for other shapes.

        >>> model.with_state_dict(torch.load("trained.pt"))

        Args:
            state_dict: arrays by name, numpy's, jax's or torch's. What does nothing may be left
                over: counts of batches, norms of weight 1 and bias 0.
            strict: whether names may be neither missing nor left over. Otherwise this model's own
                arrays stand for what is missing.
        """
        from nnef_jax.state_dict import stored_params

        stored = stored_params(self.graph, state_dict, strict=strict)
        return self.with_params({**self.params, **stored})

    def shard(
        self,
        mesh: Mesh,
        *,
        batch: str | Sequence[str] | None = None,
        params: str | Sequence[str] | Mapping[str, PartitionSpec] | None = None,
        batch_axis: int = 0,
    ) -> Model:
        """Return a model that lives on the devices of a mesh: docs/devices.md.

        Parameters go from the file to their devices alone. Calls put inputs on the mesh, sharded by
        batch, and return results that are; arrays that are there already stay as they are. On
        several hosts an array of numpy is the part of the batch for the host's own devices.

        Args:
            mesh: of `jax.make_mesh`; its axes are Auto or Explicit.
            batch: axes of the mesh along which the batch is sharded; with None it is not.
            params: axes of the mesh along which parameters are sharded; with None each device has
                all of them. Along an axis that is one of the batch's too each is sharded along its
                longest axis, and gathered when it is computed with (fully sharded). Along another
                those of products and convolutions are, so that devices divide the work (tensor
                parallel). What has under 1024 items, or does not divide, is on each device. A dict
                says it by label or pattern of `fnmatch`: `{"blocks.*.weight": P("model", None)}`.
            batch_axis: the axis of inputs, outputs and states that is the batch. An array has the
                batch if it has as many items there as the first input that has the axis.

        Raises InputError for names and labels that there are not, and what does not divide.

        >>> mesh = jax.make_mesh((2, 4), ("data", "model"))
        >>> probabilities = model.shard(mesh, batch="data", params="model")(images)
        """
        from nnef_jax.sharding import layout_of

        layout = layout_of(self.execution.definition, mesh, batch, params, batch_axis)
        return Model(self.execution.over(layout))

    def batcher(self, sizes: Sequence[int] = (1, 2, 4, 8, 16, 32)) -> Batcher:
        """Return a function of batches of any size, with programs for these sizes alone.

        A network that declares a batch takes others too. `Batcher.compile` compiles ahead. Raises
        InputError where items of a batch depend on one another, or may: softmax along the batch,
        say; for a network with a state, and for inputs or outputs without an axis for the batch.

        >>> classify = model.batcher((1, 8, 32))
        >>> classify.compile()
        >>> probabilities = classify(images[:11])  # one call for 32, of which 11 are computed for
        """
        from nnef_jax.batcher import Batcher

        return Batcher(self.execution, sizes)

    @property
    def plan(self) -> ShardingPlan:
        """Return how parameters lie on the mesh of a model that `shard` made; it prints as a table.

        Raises InputError without a mesh.
        """
        from nnef_jax.sharding import plan_of

        return plan_of(self.execution.definition)

    def summary(self) -> str:
        """Return a table: name, operation (int8: in integers), shape, dtype, parameters, MACs.

        Below it stands which products a CPU computes in float32 since fewer bits gain nothing.
        """
        from nnef_jax.execution import cpu_products
        from nnef_jax.summary import summarise

        definition, graph = self.execution.definition, self.graph
        in_integers = cpu_products.in_integers(definition, graph)
        remarks = cpu_products.remarks(definition, graph)
        return summarise(definition.network, in_integers, remarks)

    @overload
    def __call__(
        self, *args: ArrayLike, edit: Edits | None = None, capture: None = None, **kwargs: ArrayLike
    ) -> Any: ...
    @overload
    def __call__(
        self, *args: ArrayLike, edit: Edits | None = None, capture: Names, **kwargs: ArrayLike
    ) -> tuple[Any, dict[str, Array]]: ...
    def __call__(
        self,
        *args: ArrayLike,
        edit: Edits | None = None,
        capture: Names | None = None,
        **kwargs: ArrayLike,
    ) -> Any:
        """Run the network; a recurrent one for a single cycle from its initial state.

        Inputs are given in order, by name, or as one dict by name. A `key` that is none of them is
        left out: equinox gives layers one.
        Another width of the same kind is converted (float64 to float32). Integers must fit; of
        traced ones the dtype must. Raises InputError where inputs do not fit, ShapeError where
        shapes inside do not. `edit` and `capture` are those of `apply`.
        """
        execution = self.execution
        if edit is None and capture is None:
            inputs = in_order(self.graph.inputs, args, kwargs) if kwargs else args
            if inputs is not None and (known := execution.known(inputs)):
                try:
                    return known(list(map(copied, inputs)))
                except Exception:  # a NaN that jax looks for, or a function that it compiles now
                    if not (is_watched() or is_traced()):
                        raise
        return execution.call(args, kwargs, probe=Probe.of(edit, capture))

    @overload
    def apply(
        self,
        params: Params | Prepared,
        *args: ArrayLike,
        edit: Edits | None = None,
        capture: None = None,
        **kwargs: ArrayLike,
    ) -> Any: ...
    @overload
    def apply(
        self,
        params: Params | Prepared,
        *args: ArrayLike,
        edit: Edits | None = None,
        capture: Names,
        **kwargs: ArrayLike,
    ) -> tuple[Any, dict[str, Array]]: ...
    def apply(
        self,
        params: Params | Prepared,
        *args: ArrayLike,
        edit: Edits | None = None,
        capture: Names | None = None,
        **kwargs: ArrayLike,
    ) -> Any:
        """Run the network as a pure function of parameters and inputs, for `jax.grad` and the like.

        It and its derivatives are compiled as a whole, outside `jax.jit` too. `params` are arrays
        by label, of which unread ones may be there as well; other real dtypes are converted to the
        network's. Raises InputError where labels are missing or unknown, or arrays do not fit.

        >>> gradient = jax.grad(lambda x: model.apply(model.params, x)[0, 3])(x)

        Args:
            params: arrays by label, or what `prepare` returned.
            args: inputs in the order of the graph; those named `edit` and `capture` only so.
            edit: for tensors of the graph what all that reads them gets instead: a function of the
                tensor, or an array of its shape and dtype. Names are those of `summary`; a name
                that nothing has is a pattern of `fnmatch`. A function is traced once for each
                object, as in `jax.jit`.
            capture: names or patterns of tensors to return, as they are after edits. The result is
                then `(outputs, {name: array})`.
            kwargs: inputs by name.

        >>> outputs, inside = model.apply(params, x, edit={"relu2": jnp.abs}, capture=["conv1"])
        """
        probe = Probe.of(edit, capture)
        params = self.execution.check_params(params, all=bool(probe.capture))
        return self.execution.call(args, kwargs, params, probe)

    def prepare(
        self,
        params: Params | Prepared,
        *args: Example,
        state: State | None = None,
        **kwargs: Example,
    ) -> Prepared:
        """Return prepared params for `apply`, `step` and `scan`, which are then as fast as a call.

        In a function that jax compiles with `compiler_options`, what depends on parameters alone
        is then not computed again. It is a pytree which holds the parameters too: other shapes,
        derivatives in inputs and all else that is not as prepared is computed from them. It has no
        derivatives itself: differentiate parameters.

        `params` may be traced. Inputs are arrays or `jax.ShapeDtypeStruct`s, those of a cycle after
        `state`: by default of the declared shapes, and the initial state. Raises InputError.

        >>> fast = jax.jit(model.apply, compiler_options=model.compiler_options)
        >>> y = fast(model.prepare(model.params), x)
        """
        bound = self.execution.check_params(params, all=True)
        arrays = {label: jnp.asarray(bound[label]) for label in self.execution.definition.needed}
        before = state and self.execution.check_state(state)
        return self.execution.prepare(arrays, self.execution.types(args, kwargs), before)

    @property
    def compiler_options(self) -> dict[str, str]:
        """Return the compiler's options that suit the network, for functions around `apply`.

        >>> step = jax.jit(jax.value_and_grad(loss), compiler_options=model.compiler_options)
        """
        return self.execution.executables.options(default_platform())

    def intermediates(
        self, *args: ArrayLike, names: Sequence[str] | None = None, **kwargs: ArrayLike
    ) -> dict[str, Array]:
        """Compute tensors inside the network: arrays by name, of all tensors without `names`.

        Raises InputError for a name that the graph does not have.

        >>> model.intermediates(x, names=["conv1"])["conv1"].shape
        """
        wanted = ("*",) if names is None else names_of("names", names, "names of tensors")
        return self.execution.call(args, kwargs, probe=Probe(capture=wanted, results=False))

    def lower(self, *args: Example, **kwargs: Example) -> jax.stages.Lowered:
        """Lower `apply` by JAX, parameters being arguments: `.as_text()`, `.compile()`.

        Inputs are arrays or `jax.ShapeDtypeStruct`s; without any, the declared shapes are taken.
        """
        inputs = self.execution.types(args, kwargs)
        return jax.jit(self.apply).lower(self.execution.arrays.parameters(), *inputs)

    def init_state(self, *args: Example, **kwargs: Example) -> dict[str, Array]:
        """Return the state before a first cycle: stored values of updated variables by label.

        Those that start with what is computed need the inputs of a first cycle, or their types.
        """
        return self.execution.first_state(lambda: self.execution.types(args, kwargs))

    @overload
    def step(
        self,
        state: State,
        *args: ArrayLike,
        params: Params | Prepared | None = None,
        edit: Edits | None = None,
        capture: None = None,
        **kwargs: ArrayLike,
    ) -> tuple[Any, dict[str, Array]]: ...
    @overload
    def step(
        self,
        state: State,
        *args: ArrayLike,
        params: Params | Prepared | None = None,
        edit: Edits | None = None,
        capture: Names,
        **kwargs: ArrayLike,
    ) -> tuple[Any, dict[str, Array], dict[str, Array]]: ...
    def step(
        self,
        state: State,
        *args: ArrayLike,
        params: Params | Prepared | None = None,
        edit: Edits | None = None,
        capture: Names | None = None,
        **kwargs: ArrayLike,
    ) -> Any:
        """Run one cycle (spec 4.7): `outputs, state = model.step(state, x)`.

        `state` is from `init_state` or an earlier step. `params` are used instead of the network's
        own, to differentiate by, say. With `load(..., donate_state=True)` the arrays of `state` are
        gone afterwards. `edit` and `capture` are those of `apply`, captures come last:
        `outputs, state, inside = model.step(state, x, capture=["h"])`.
        """
        inputs = self.execution.bind(args, kwargs)
        probe = Probe.of(edit, capture)
        return self._recur(self.execution.step, state, inputs, params, probe)

    @overload
    def scan(
        self,
        *args: ArrayLike,
        state: State | None = None,
        params: Params | Prepared | None = None,
        edit: Edits | None = None,
        capture: None = None,
        **kwargs: ArrayLike,
    ) -> tuple[Any, dict[str, Array]]: ...
    @overload
    def scan(
        self,
        *args: ArrayLike,
        state: State | None = None,
        params: Params | Prepared | None = None,
        edit: Edits | None = None,
        capture: Names,
        **kwargs: ArrayLike,
    ) -> tuple[Any, dict[str, Array], dict[str, Array]]: ...
    def scan(
        self,
        *args: ArrayLike,
        state: State | None = None,
        params: Params | Prepared | None = None,
        edit: Edits | None = None,
        capture: Names | None = None,
        **kwargs: ArrayLike,
    ) -> Any:
        """Run many cycles along the inputs' first axis, time: `outputs, state = model.scan(xs)`.

        They are one `lax.scan`: what is compiled does not grow with their number, and gradients
        pass through time. Outputs and captures get a new first axis. `state` is `init_state()` by
        default. An edit is made in each cycle.
        """
        inputs = self.execution.bind(args, kwargs, 1)
        require_one_length(inputs)
        first = self.execution.first_state
        state = first(lambda: [x[0] for x in inputs]) if state is None else state
        probe = Probe.of(edit, capture)
        return self._recur(self.execution.scan, state, inputs, params, probe)

    def _recur(
        self,
        entry: Entry,
        state: State,
        inputs: list[Any],
        params: Params | Prepared | None,
        probe: Probe,
    ) -> Any:
        state = self.execution.check_state(state)
        if layout := self.execution.definition.layout:
            state = layout.put_state(state, [x.shape[entry.time_axes :] for x in inputs])
        if params is not None:
            params = self.execution.check_params(params, all=bool(probe.capture))
        return self.execution.run(entry, state, inputs, params, probe)

    def cut(
        self, *, inputs: Sequence[str] | None = None, outputs: Sequence[str] | None = None
    ) -> Model:
        """Return the part of the network between tensors, as a model of its own.

        It has the parameters and states that its outputs depend on, runs as this one does, and is
        saved as a flat document. Open extents stay open.

        Args:
            inputs: names of the tensors that it takes, in order: those of `summary`, and of inputs,
                parameters and states; no patterns. What is taken is what all readers get, after
                graph.quant. By default the inputs of the network that the outputs depend on.
            outputs: names of the tensors that it returns, in order. By default the outputs of the
                network that follow from the inputs.

        Raises InputError where names are unknown, the outputs need more than the inputs or less.

        >>> head = model.cut(inputs=["pool"], outputs=["logits"])
        """
        from nnef_jax.cutting import cut

        execution = self.execution
        part = cut(execution.network, inputs, outputs, execution.arrays.stored)
        return Model(execution.with_network(part))

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        params: Params | None = None,
        state: State | None = None,
        quantize: Iterable[Sample] | None = None,
        overwrite: bool = False,
    ) -> None:
        """Write the network as an NNEF archive, with these parameters and state or its own.

        Args:
            path: a folder to make, or an archive by its suffix (.tar, .tgz, .tar.gz, .tar.xz).
                Arrays over several hosts are written to a .tar, which all hosts call together.
            params: arrays by label, as in `params`.
            state: arrays by label, as in `init_state`: where a later load starts from.
            quantize: sample inputs, of which `nnef_jax.calibrate` makes `graph.quant`; otherwise
                one that was read is kept.
            overwrite: replace what is at the path; otherwise FileExistsError.
        """
        from nnef_jax.saving import write_network

        require_path("path", path)
        require_flags(overwrite=overwrite)
        stored, definition = self.execution.arrays, self.execution.definition
        state = stored.initial_state() if state is None else state
        params = stored.parameters() if params is None else params
        checked = {
            "state": definition.check_state(state, definition.states),
            "params": definition.check_params(params, all=True, stored=True),
        }
        require_values("save", checked, here=False)
        network = definition.network
        arrays = {**stored.select(network.unused), **checked["state"], **checked["params"]}
        text = None  # the graph.quant that was read
        if quantize is not None:
            require_samples("quantize", quantize)
            from nnef_jax.calibration import calibrate

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
        """Write the network as one file that jax runs without nnef_jax: docs/export.md.

        Args:
            path: the file to make.
            entry: the method that it holds. It takes parameters by label, for "step" and "scan" the
                state by label, then the inputs in the order of the graph. Several outputs are a
                tuple.
            platforms: where it can run: some of cpu, cuda, rocm, tpu.
            batch: what jax calls the open extent of first axes, which is the same for all inputs.
                With None each has a symbol of its own, as other open extents have: 'x_2' for axis 2
                of x, the document's own names in tract's dialect, 'time' for the cycles of a scan.
            constraints: what holds of open extents, such as 'x_2 >= 8' or 'x_2 == z_2'.
            vjp_order: how often it can be differentiated: 0, 1 or 2 times, in reverse mode.
            params: "inside" stores the parameters and the initial state in the file, a .npz;
                "beside" stores neither, and the file is what `jax.export` serialises.
            overwrite: replace what is at the path; otherwise FileExistsError.

        Raises InputError for wrong arguments, UnsupportedError for what jax cannot export, and
        where the extra `export` is missing.

        >>> model.export("net.npz", platforms=("cpu", "tpu"), vjp_order=1)
        """
        from nnef_jax.export import export

        told = entry, platforms, batch, constraints, vjp_order, params, overwrite
        export(self.execution, path, *told)


def _of(arrays: Arrays) -> Model:
    return Model(Execution.of(arrays))


def _children(model: Model) -> tuple[Any, Executables]:
    params, state = model.execution.arrays.leaves()
    children = (GetAttrKey("params"), params), (GetAttrKey("state"), state)
    return children, model.execution.executables


def _unflattened(executables: Executables, leaves: Any) -> Model:
    arrays = Arrays(executables.definition, tuple(leaves))
    return Model(Execution(executables, arrays))


# To jax a model is a tree of its parameters and its initial state.
register_pytree_with_keys(Model, _children, _unflattened)
