"""Describes a network to its user, and makes other models of it.

Methods that run it are in `runnable.py`, those that write it to a file in `writable.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack

from jax.core import Tracer
from jax.sharding import Mesh, PartitionSpec
from jax.tree_util import GetAttrKey, register_pytree_with_keys
from numpy.typing import ArrayLike

from lowering.graph import Graph
from nnef_jax.call_arguments import Params, State
from nnef_jax.execution.arrays import Arrays
from nnef_jax.execution.executables import Executables
from nnef_jax.execution.execution import Execution
from nnef_jax.execution.run_options import RunKeywords
from nnef_jax.options import require_keywords
from nnef_jax.reading import ReadingOptions
from nnef_jax.runnable import execution_of
from nnef_jax.tensor_spec import TensorSpec
from nnef_jax.trimming import is_length
from nnef_jax.writable import Writable

if TYPE_CHECKING:
    from nnef_jax.batcher import Batcher
    from nnef_jax.sharding import ShardingPlan
    from nnef_jax.summary import Summary


class Model(Writable):
    """An NNEF network, loaded by `nnef_jax.load`; it never changes.

    To jax it is a tree of its `params` and its initial state, and all else is static: it may be an
    argument or a result of transformed functions. Derivatives by its own initial state are 0. It
    pickles with its arrays.

    A call runs it, jitted, on its own parameters. Inputs are numpy or jax arrays, by name or in the
    order of the graph. One output is an array, several are a NamedTuple with the graph's names,
    by which `y["name"]` has them too.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        # By value: the document, and the arrays as numpy's. What is compiled is not in it. Copies
        # are made by it too: `arrays` decide what of them is copied.
        return _of, (self._execution.arrays,)

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(str, specs)) for specs in (self.inputs, self.outputs))
        return f"<nnef_jax.Model {self.graph.name}({inputs}) -> ({outputs})>"

    def _repr_html_(self) -> str:
        from nnef_jax.viewing.card import card

        return card(self._execution.network)

    @property
    def graph(self) -> Graph:
        """Return the flat graph, with the shapes that hold before a call."""
        return self._execution.network.graph

    @cached_property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Return the inputs of a call, in order."""
        return self._execution.network.specs(self.graph.inputs)

    @cached_property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Return the outputs of a call, in order."""
        return self._execution.network.specs(self.graph.outputs, self.graph.output_names)

    @property
    def lengths(self) -> tuple[str, ...]:
        """Return names to `capture`: how many items outputs have, for `nnef_jax.trim`.

        There are some where values decide that, as of `NonZero`, none otherwise.
        """
        return tuple(filter(is_length, self.graph.aliases))

    @property
    def trainable(self) -> Model:
        """Return a model of booleans in the place of arrays: what an optimizer is to change.

        False stands for states, for parameters that are no real numbers, and for those that the
        `mean` or `variance` of a batch normalisation is computed from.

        >>> trained, fixed = eqx.partition(model, model.trainable)
        """
        from nnef_jax.trainable import trained_labels

        params, state = self._execution.arrays.leaves()
        labels = trained_labels(self.graph)
        booleans = {label: label in labels for label in params}, dict.fromkeys(state, False)
        return Model(self._execution.on(booleans))

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
                this model's own by default. Derivatives are taken by these, by its own not.
        """
        definition = self._execution.definition
        before, initial = self._execution.arrays.leaves()
        checked = definition.check_params(params, all=True)
        if state is not None:
            state = definition.check_state(state, definition.states)
        arrays = {x: checked.pop(x) if x in checked else before[x] for x in definition.labels}
        # The others are compared by value, as all that is static, which traced arrays cannot be.
        unread = {label: x for label, x in checked.items() if not isinstance(x, Tracer)}
        leaves = arrays, initial if state is None else state
        return Model(self._execution.on(leaves, unread, state_is_given=state is not None))

    def with_options(self, **options: Unpack[RunKeywords]) -> Model:
        """Return a model of the same network, which runs in another way: options of `load`.

        They are `precision`, `optimize`, `autotune`, `donate_state`, `cache_dir`, `measure` and
        `max_executables`. Nothing is read again. The arrays stay where they are, on a mesh too.
        Models of equal options share what is compiled for them, and all share prepared parameters.

        Raises TypeError for an option that decides how a network is read, and as `load` does.

        >>> exact = model.with_options(precision="highest", optimize=False)
        """
        for name in options:
            if name == "unused" or name in ReadingOptions.__dataclass_fields__:
                raise TypeError(f"'{name}' decides what is read: give it to load")
        require_keywords("with_options", options, RunKeywords)
        execution = self._execution
        has_rules = bool([*execution.network.options.rules])
        run = execution.definition.options.with_keywords(options, has_rules=has_rules)
        return Model(execution.with_options(run))

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

        layout = layout_of(self._execution.definition, mesh, batch, params, batch_axis)
        return Model(self._execution.over(layout))

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

        return Batcher(self._execution, sizes)

    @property
    def plan(self) -> ShardingPlan:
        """Return how parameters lie on the mesh of a model that `shard` made; it prints as a table.

        Raises InputError without a mesh.
        """
        from nnef_jax.sharding import plan_of

        return plan_of(self._execution.definition)

    def summary(self) -> Summary:
        """Return a table: name, operation (int8: in integers), shape, dtype, parameters, MACs.

        Below it stands which products a CPU computes in float32 since fewer bits gain nothing.
        `str` is the table, and operations, sizes and types are attributes.
        """
        from nnef_jax.execution import cpu_products
        from nnef_jax.summary import summarise

        definition, graph = self._execution.definition, self.graph
        in_integers = cpu_products.in_integers(definition, graph)
        remarks = cpu_products.remarks(definition, graph)
        return summarise(definition.network, in_integers, remarks)

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

        execution = self._execution
        part = cut(execution.network, inputs, outputs, execution.arrays.stored)
        return Model(execution.with_network(part))


def _of(arrays: Arrays) -> Model:
    return Model(Execution.of(arrays))


def _children(model: Model) -> tuple[Any, Any]:
    execution = execution_of(model)
    params, state = execution.arrays.leaves()
    children = (GetAttrKey("params"), params), (GetAttrKey("state"), state)
    return children, (execution.executables, execution.arrays.state_is_given)


def _unflattened(static: tuple[Executables, bool], leaves: Any) -> Model:
    executables, state_is_given = static
    arrays = Arrays(executables.definition, tuple(leaves), state_is_given=state_is_given)
    return Model(Execution(executables, arrays))


# To jax a model is a tree of its parameters and its initial state.
register_pytree_with_keys(Model, _children, _unflattened)
