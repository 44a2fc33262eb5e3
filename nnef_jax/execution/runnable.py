"""Runs a network: calls, pure functions, cycles with a state, and compilation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, overload

import jax
import jax.numpy as jnp
from jax import Array
from numpy.typing import ArrayLike

from nnef_jax.calls.arguments import Example, Params, State, in_order, require_one_length
from nnef_jax.calls.array_conversion import copied
from nnef_jax.execution.entry import Entry
from nnef_jax.execution.execution import Execution
from nnef_jax.execution.initial_state import first_state
from nnef_jax.execution.places import debugs_or_disables_jit, default_platform, is_traced
from nnef_jax.execution.probe import Edits, Probe
from nnef_jax.execution.run_options import Prepared
from nnef_jax.options import names_of

Names = Sequence[str]


class Runnable:
    """The methods of `nnef_jax.Model` that run the network."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution

    @property
    def params(self) -> dict[str, Array]:
        """Return the parameters by label. The dict is the first argument of `apply`.

        Each access returns a new dict, and a change of the dict does not change the model.
        `with_params` returns a model with other parameters. Unused parameters are included only
        if the network was loaded with `unused=True`.
        """
        params, _state = self._execution.arrays.leaves()
        return dict(params)

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
        """Run the network. A recurrent network runs for a single cycle from its initial state.

        Inputs are passed in order, by name, or as one dict by name. An argument `key` that is not
        the name of an input is ignored, since equinox passes a key to all layers. Inputs of another
        width are converted, such as float64 to float32. Integers must be in the range of the
        input's dtype. The dtype of traced integers must have a range within this range. Raises
        InputError if inputs do not fit their declarations, and ShapeError if shapes inside the
        network do not fit each other. `edit` and `capture` are explained at `apply`.
        """
        execution = self._execution
        if edit is None and capture is None:
            # If there is an executable for inputs of these types, it is called at once. This call
            # is faster than `execution.call` below, which checks and converts the inputs first.
            inputs = in_order(execution.network.graph.inputs, args, kwargs) if kwargs else args
            executable = None if inputs is None else execution.executable_for(inputs)
            if inputs is not None and executable is not None:
                try:
                    return executable(list(map(copied, inputs)))
                except Exception:
                    # Within a trace the executable fails, but the general call below succeeds. If
                    # jax looks for NaNs, the error of the general call names the operation that
                    # computes the NaN. In these cases this error is dropped.
                    is_general_call_better = debugs_or_disables_jit() or is_traced()
                    if not is_general_call_better:
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

        The function and its derivatives are each compiled as one program, even outside `jax.jit`.
        `params` may include unused parameters. Floating-point parameters are converted to the
        network's dtypes. Raises InputError if labels are missing or unknown, or if arrays do not
        fit their declarations.

        >>> gradient = jax.grad(lambda x: model.apply(model.params, x)[0, 3])(x)

        Args:
            params: arrays by label, or the result of `prepare`.
            args: inputs in the order of the graph. Inputs whose name is `edit` or `capture` can be
                passed only in this way.
            edit: a dict from names of tensors to replacements. A replacement is a function of the
                tensor, or an array of its shape and dtype. All operations that read the tensor get
                the replacement. The names are those in `summary`; a name that no tensor has is a
                pattern of `fnmatch`. Each function object is traced once, as in `jax.jit`.
            capture: names or patterns of tensors to return, after edits. With this argument the
                result is `(outputs, {name: array})`.
            kwargs: inputs by name.

        >>> outputs, inside = model.apply(params, x, edit={"relu2": jnp.abs}, capture=["conv1"])
        """
        probe = Probe.of(edit, capture)
        params = self._execution.check_params(params, all=bool(probe.capture))
        return self._execution.call(args, kwargs, params, probe)

    def prepare(
        self,
        params: Params | Prepared,
        *args: Example,
        state: State | None = None,
        **kwargs: Example,
    ) -> Prepared:
        """Return prepared params, with which `apply`, `step` and `scan` are as fast as a call.

        Values that depend only on parameters are computed once, when the params are prepared. A
        function of `model.jit` then does not compute them again in each call. Prepared params are a
        pytree that contains the parameters too. The parameters are used in calls with other shapes,
        and for derivatives with respect to inputs. To differentiate with respect to parameters,
        pass the parameters themselves; prepared params have no derivatives.

        `params` may be traced. Inputs are arrays or `jax.ShapeDtypeStruct`s, by default of the
        declared shapes. If `state` is passed, values are prepared for a cycle from this state on
        these inputs. Raises InputError in the same cases as `apply`.

        >>> fast = model.jit(model.apply)
        >>> y = fast(model.prepare(model.params), x)
        """
        execution = self._execution
        bound = execution.check_params(params, all=True)
        labels = execution.definition.needed_labels
        arrays = {label: jnp.asarray(bound[label]) for label in labels}
        checked_state = execution.check_state(state) if state else state
        return execution.prepare(arrays, execution.types(args, kwargs), checked_state)

    @property
    def compiler_options(self) -> dict[str, str]:
        """Return the compiler options that suit the network, for functions that call `apply`."""
        return self._execution.executables.options(default_platform())

    def jit(self, function: Callable[..., object], **options: Any) -> jax.stages.Wrapped:
        """Return `jax.jit` of a function, with the compiler options that suit the network.

        `options` are options of `jax.jit`. Compiler options among them override the options that
        suit the network. If jitted functions call each other, jax uses only the compiler options of
        the outermost function.

        >>> step = model.jit(jax.value_and_grad(loss))
        """
        compiler_options = self.compiler_options | (options.pop("compiler_options", None) or {})
        return jax.jit(function, compiler_options=compiler_options, **options)

    def intermediates(
        self, *args: ArrayLike, names: Sequence[str] | None = None, **kwargs: ArrayLike
    ) -> dict[str, Array]:
        """Run the network, and return a dict from names to arrays of tensors inside the network.

        `names` are names or patterns of tensors; by default the arrays of all tensors are
        returned. Raises InputError for a name that no tensor has.

        >>> model.intermediates(x, names=["conv1"])["conv1"].shape
        """
        tensors = ("*",) if names is None else names_of("names", names, "names of tensors")
        return self._execution.call(args, kwargs, probe=Probe(capture=tensors, results=False))

    def lower(self, *args: Example, **kwargs: Example) -> jax.stages.Lowered:
        """Lower `apply` by jax, as a function of the parameters and inputs.

        The result has methods such as `as_text` and `compile`. Inputs are arrays or
        `jax.ShapeDtypeStruct`s; by default they have the shapes that the network declares.
        """
        types_of_params, _ = self._execution.arrays.types()
        input_types = self._execution.types(args, kwargs)
        return jax.jit(self.apply).lower(types_of_params, *input_types)

    def init_state(self, *args: Example, **kwargs: Example) -> dict[str, Array]:
        """Return the state before the first cycle: a dict from labels to initial values of states.

        If an initial value is computed from inputs, pass the inputs of the first cycle. An
        input from which no initial value is computed may be a type.
        """
        return first_state(self._execution, lambda: self._execution.types(args, kwargs))

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

        `state` is the result of `init_state` or of an earlier step. `params` replace the model's
        parameters, so that a function can be differentiated with respect to them. If the model was
        loaded with `donate_state=True`, the arrays of `state` cannot be read after the call. `edit`
        and `capture` are explained at `apply`; the captures are the last item of the result:

        `outputs, state, inside = model.step(state, x, capture=["h"])`.
        """
        inputs = self._execution.bind(args, kwargs)
        probe = Probe.of(edit, capture)
        return self._recur(self._execution.step, state, inputs, params, probe)

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

        The cycles are one `lax.scan`, so the program has the same size for any number of cycles.
        Gradients pass through all time steps. Each output and capture has a first axis, which is
        time. `state` is by default `init_state()`. Edits apply to each cycle.
        """
        inputs = self._execution.bind(args, kwargs, time_axes=1)
        require_one_length(inputs)
        if state is None:
            state = first_state(self._execution, lambda: [x[0] for x in inputs])
        probe = Probe.of(edit, capture)
        return self._recur(self._execution.scan, state, inputs, params, probe)

    def _recur(
        self,
        entry: Entry,
        state: State,
        inputs: list[Array],
        params: Params | Prepared | None,
        probe: Probe,
    ) -> Any:
        """Check the state and the parameters of a call of `step` or `scan`, and run the call."""
        state = self._execution.check_state(state)
        layout = self._execution.definition.layout
        if layout:
            shapes_of_one_cycle = [x.shape[entry.time_axes :] for x in inputs]
            state = layout.put_state(state, shapes_of_one_cycle)
        if params is not None:
            params = self._execution.check_params(params, all=bool(probe.capture))
        return self._execution.run(entry, state, inputs, params, probe)


# This function returns the execution of a model. `nnef_jax.workings` uses it, and so do packages
# that make models, such as `nnef_jax.generation`.
execution_of: Callable[[Runnable], Execution] = attrgetter("_execution")
