"""The class `Model`, which describes a network and derives other models from it.

The base classes of `Model` are in other modules: `execution.runnable` runs the network, and
`saving.writable` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack

from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh, PartitionSpec
from jax.tree_util import GetAttrKey, register_pytree_with_keys
from numpy.typing import ArrayLike

from lowering.graph import Graph
from nnef_jax.calls.arguments import Params, State
from nnef_jax.calls.array_conversion import copied
from nnef_jax.calls.trimming import is_length
from nnef_jax.execution.arrays import Arrays
from nnef_jax.execution.executables import Executables
from nnef_jax.execution.execution import Execution
from nnef_jax.execution.run_options import RunKeywords, run_options
from nnef_jax.execution.runnable import execution_of
from nnef_jax.options import require_keywords
from nnef_jax.reading.read import ReadingOptions
from nnef_jax.saving.writable import Writable
from nnef_jax.tensor_spec import TensorSpec

if TYPE_CHECKING:
    from nnef_jax.calls.batcher import Batcher
    from nnef_jax.measure.summary import Summary
    from nnef_jax.parameters.sharding import ShardingPlan


class Model(Writable):
    """An immutable NNEF network, as `nnef_jax.load` returns it.

    A model is a pytree of its `params` and its initial state; everything else is static. A model
    can therefore be an argument or a result of transformed functions. Derivatives with respect to
    its initial state are 0, unless `with_params` has set that state. Pickling includes the arrays.

    A call runs the jitted network on the model's parameters. Inputs are numpy or jax arrays, by
    name or in the order of the graph. A single output is an array. Several outputs are a
    NamedTuple, whose fields have the names of the outputs. For such a result `y`, `y["name"]` is
    the output of this name, even if Python does not allow the name for a field.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        # The pickle has the document, and the arrays as numpy arrays. Compiled code is left out.
        # `copy` calls this method too: the class Arrays decides which arrays are copied.
        return _unpickled, (self._execution.arrays,)

    def __repr__(self) -> str:
        inputs = ", ".join(map(str, self.inputs))
        outputs = ", ".join(map(str, self.outputs))
        differences = "".join(f", {words}" for words in self._execution.definition.differences)
        return f"<nnef_jax.Model {self.graph.name}({inputs}) -> ({outputs}){differences}>"

    def _repr_html_(self) -> str:
        from nnef_jax.viewing.card import card

        return card(self._execution.network)

    @property
    def graph(self) -> Graph:
        """Return the flat graph, with the shapes that are known before a call."""
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
        """Return the names of the tensors that hold the lengths of outputs.

        An output has such a tensor only if its length depends on values, as for `NonZero`. Pass the
        names to a call as `capture=`, and the captured lengths to `nnef_jax.trim`.
        """
        return tuple(filter(is_length, self.graph.aliases))

    @property
    def trainable(self) -> Model:
        """Return a model whose arrays are booleans: True for each array that should be trained.

        The boolean is False for states, for parameters that are not floating-point numbers, and for
        parameters that determine the `mean` or `variance` of a batch normalisation.

        >>> trained, fixed = eqx.partition(model, model.trainable)
        """
        from nnef_jax.parameters.trainable import trained_labels

        params, state = self._execution.arrays.leaves()
        labels = trained_labels(self.graph)
        are_params_trained = {label: label in labels for label in params}
        are_states_trained = dict.fromkeys(state, False)
        return Model(self._execution.with_leaves((are_params_trained, are_states_trained)))

    def with_params(self, params: Params, *, state: State | None = None) -> Model:
        """Return a model of the same network with other arrays, which stay on their devices.

        The models share compiled functions: the first model that is called compiles for all of
        them. The arrays may be traced, on other devices, or sharded; jax then places the
        computation. Raises InputError in the same cases as `apply`.

        >>> half = model.with_params(jax.tree.map(lambda x: x / 2, model.params))

        Args:
            params: a dict from labels to arrays, as the property `params` is. Unused parameters may
                be included; they are saved if they are not traced.
            state: a dict from labels to arrays, as `init_state` returns it. It becomes the initial
                state of calls and the result of `init_state`; by default the new model has the
                initial state of this model. The new model has derivatives with respect to a `state`
                that is passed here, but not with respect to the default.
        """
        definition = self._execution.definition
        current_params, current_state = self._execution.arrays.leaves()
        # Arrays of numpy are copied, since the user may change them later.
        checked_params: dict[str, Any] = {}
        for label, array in definition.check_params(params, all=True).items():
            checked_params[label] = copied(array)
        if state is None:
            initial_state = current_state
        else:
            checked_state = definition.check_state(state, definition.states)
            initial_state = {label: copied(array) for label, array in checked_state.items()}
        new_params: dict[str, Any] = {}
        for label in definition.labels:
            new_params[label] = checked_params.get(label, current_params[label])
        # Unread parameters are static fields of the new model, and static fields are compared by
        # value. A traced array has no value, and is therefore left out.
        unread: dict[str, Any] = {}
        for label, array in checked_params.items():
            if label not in new_params and not isinstance(array, Tracer):
                unread[label] = array
        execution = self._execution.with_leaves(
            (new_params, initial_state), unread, state_from_user=state is not None
        )
        return Model(execution)

    def with_options(self, **options: Unpack[RunKeywords]) -> Model:
        """Return a model of the same network that runs with other options of `load`.

        These options are `precision`, `optimize`, `autotune`, `donate_state`, `cache_dir`,
        `measure` and `max_executables`. Nothing is read again, and the arrays stay on their devices
        or mesh. Models with equal options share compiled functions. Models of one network share
        prepared parameters even if their options differ.

        Raises TypeError for an option that decides how a network is read, and the same errors as
        `load` for a wrong value.

        >>> exact = model.with_options(precision="highest", optimize=False)
        """
        for name in options:
            decides_reading = name == "unused" or name in ReadingOptions.__dataclass_fields__
            if decides_reading:
                raise TypeError(f"'{name}' decides what is read: give it to load")
        require_keywords("with_options", options, RunKeywords.__annotations__)
        execution = self._execution
        has_rules = bool([*execution.network.options.rules])
        changed = run_options(execution.definition.options, options, has_rules=has_rules)
        return Model(execution.with_options(changed))

    def with_state_dict(self, state_dict: Mapping[str, ArrayLike], *, strict: bool = True) -> Model:
        """Return a model with the weights of a PyTorch module.

        The module has the class that was exported. Each name in the dict is a label, or a name from
        which torch_to_nnef or torch.onnx made a label: see docs/pytorch.md. Raises InputError for
        missing, superfluous and ambiguous names, and for arrays of another shape.

        >>> model.with_state_dict(torch.load("trained.pt"))

        Args:
            state_dict: a dict from names to numpy, jax or torch arrays. Superfluous arrays are
                accepted if they have no effect, such as counts of batches, and norms with weight 1
                and bias 0.
            strict: whether missing and superfluous names are errors. If not, superfluous arrays are
                ignored, and this model's arrays are used for missing names.
        """
        from nnef_jax.parameters.state_dict import stored_params

        stored = stored_params(self.graph, state_dict, strict=strict)
        return self.with_params({**self.params, **stored})

    def shard(
        self,
        mesh: Mesh | AbstractMesh,
        *,
        batch: str | Sequence[str] | None = None,
        params: str | Sequence[str] | Mapping[str, PartitionSpec] | None = None,
        batch_axis: int = 0,
    ) -> Model:
        """Return a model on the devices of a mesh (see docs/devices.md).

        Each device reads only its shards of the parameters from the file. Calls shard inputs along
        the batch and return sharded results; an input that is on the mesh already keeps its
        sharding. If the mesh spans several hosts, each host passes as a numpy array the part of the
        batch that belongs to its own devices.

        Args:
            mesh: a mesh of `jax.make_mesh`, with Auto or Explicit axes. On devices that are not
                attached, as those of an AbstractMesh or of a topology, parameters become
                `jax.ShapeDtypeStruct`s: such a model can be lowered, but not called.
            batch: mesh axes along which the batch is sharded; None replicates the batch.
            params: mesh axes along which parameters are sharded; None replicates the parameters. If
                a mesh axis is in `batch` too, each parameter is sharded along its longest axis, and
                gathered before it is used (fully sharded). Along a mesh axis that is not in
                `batch`, the parameters of products and convolutions are sharded in such a way that
                the devices divide the work (tensor parallel). A parameter is replicated if it has
                fewer than 1024 items, or if the mesh axis does not divide its extent. A dict maps
                labels, or patterns of `fnmatch`, to PartitionSpecs: `{"blocks.*.weight": P("model",
                None)}`.
            batch_axis: the batch axis of inputs, outputs and states. An array has a batch if its
                extent along this axis equals the extent of the first input that has this axis.

        Raises InputError for unknown axes and labels, and for extents that cannot be divided.

        >>> mesh = jax.make_mesh((2, 4), ("data", "model"))
        >>> probabilities = model.shard(mesh, batch="data", params="model")(images)
        """
        from nnef_jax.parameters.sharding import layout_of

        layout = layout_of(self._execution.definition, mesh, batch, params, batch_axis)
        return Model(self._execution.with_layout(layout))

    def batcher(
        self,
        sizes: Sequence[int] = (1, 2, 4, 8, 16, 32),
        *,
        buckets: Mapping[str, Sequence[int]] | None = None,
        masks: str | Sequence[str] = (),
    ) -> Batcher:
        """Return a function that takes batches of any size, and compiles programs only for `sizes`.

        Batches may have other sizes than the batch that the network declares. `Batcher.compile`
        compiles the programs before the first call.

        Args:
            sizes: the sizes of a batch.
            buckets: maps the name of an open axis other than the batch axis, as in the document, to
                lengths. An item of a batch is padded with zeros to the next larger length, and the
                results are trimmed.
            masks: the inputs that tell the network which positions along the axes of `buckets` are
                padding: they are 0 at padding, and 1 elsewhere. The network must ignore positions
                where a mask is 0. A mask that is not passed in a call is 0 only at padding.

        Raises InputError if items of a batch may depend on one another, as in a softmax along the
        batch; if the network has a state; or if an input or output has no batch axis. Without
        `masks`, positions along the axes of `buckets` must not depend on one another either.

        >>> classify = model.batcher((1, 8, 32))
        >>> classify.compile()
        >>> probabilities = classify(images[:11])  # one call of size 32 with 11 items
        >>> embed = encoder.batcher((8,), buckets={"sequence": (32, 128)}, masks="attention_mask")
        >>> vectors = embed(input_ids=[[101, 7592, 102], [101, 2129, 2024, 2017, 102]])
        """
        from nnef_jax.calls.batcher import Batcher

        return Batcher(self._execution, sizes, buckets, masks)

    @property
    def plan(self) -> ShardingPlan | None:
        """Return the sharding of each parameter and state, or None for a model without a mesh.

        The result prints as a table.
        """
        from nnef_jax.parameters.sharding import plan_of

        return plan_of(self._execution.definition)

    def summary(self) -> Summary:
        """Return a table of the network's operations, with their shapes, parameters and MACs.

        The columns are the name, the operation, the shape, the dtype, the number of parameters, and
        the number of multiply-adds (MACs). The mark "int8" stands beside an operation that is
        computed in integers. Remarks below the table list products that a CPU computes in float32,
        because integers of fewer bits are not faster there. `str` of the summary is the table;
        operations, sizes and types are its attributes.
        """
        from nnef_jax.execution import cpu_products
        from nnef_jax.measure.summary import summarise

        definition = self._execution.definition
        graph = self.graph
        in_integers = cpu_products.in_integers(definition, graph)
        remarks = cpu_products.remarks(definition, graph)
        return summarise(definition.network, in_integers, remarks)

    def cut(
        self, *, inputs: Sequence[str] | None = None, outputs: Sequence[str] | None = None
    ) -> Model:
        """Return a model of the part of the network that lies between some tensors of the network.

        The part contains the parameters and states that its outputs depend on, and runs with the
        same options. `save` writes it as a flat document. Open extents stay open.

        Args:
            inputs: names of the tensors that become inputs of the part, in order. Each is the name
                of a tensor in `summary`, of an input, of a parameter or of a state. Patterns are
                not allowed. The input replaces the tensor for all operations that read the tensor.
                A tensor that graph.quant rounds is replaced after the rounding. By default the part
                has the inputs of the network on which the outputs depend.
            outputs: names of the part's outputs in order. By default they are the network's outputs
                that can be computed from the inputs.

        Raises InputError for unknown names, if the outputs depend on inputs of the network that are
        not in `inputs`, and if they do not depend on all of `inputs`.

        >>> head = model.cut(inputs=["pool"], outputs=["logits"])
        """
        from nnef_jax.parts.cutting import cut

        execution = self._execution
        part = cut(execution.network, inputs, outputs, execution.arrays.stored)
        return Model(execution.with_network(part))


def _unpickled(arrays: Arrays) -> Model:
    """Return the model that was pickled with these arrays."""
    return Model(Execution.of(arrays))


def _children(model: Model) -> tuple[Any, Any]:
    """Return the children of a model, each with its key, and the model's static part."""
    execution = execution_of(model)
    params, state = execution.arrays.leaves()
    children = (GetAttrKey("params"), params), (GetAttrKey("state"), state)
    static = execution.executables, execution.arrays.state_from_user
    return children, static


def _unflattened(static: tuple[Executables, bool], children: Any) -> Model:
    """Return the model that consists of a static part and of children.

    `children` are the model's parameters and its state.
    """
    executables, state_from_user = static
    arrays = Arrays(executables.definition, tuple(children), state_from_user=state_from_user)
    return Model(Execution(executables, arrays))


# A model is a pytree of its parameters and its initial state.
register_pytree_with_keys(Model, _children, _unflattened)
