"""The parts that run a network, put together."""

from __future__ import annotations

from lowering.trace import Context
from nnef_jax.execution.compiler import Compiler
from nnef_jax.execution.entry_point import EntryPoint
from nnef_jax.execution.functions import Functions
from nnef_jax.execution.options import RunOptions
from nnef_jax.execution.own_arrays import OwnArrays
from nnef_jax.network import Network


class Execution:
    """Runs a network: `outputs` of a call, `step` for a cycle and `scan` for many.

    A call of a recurrent network is one cycle from its initial state.
    """

    def __init__(self, network: Network, context: Context, options: RunOptions) -> None:
        self.own = OwnArrays(network, options)
        network = self.network = self.own.network
        self.functions = Functions(network, context, options)
        self.compiler = Compiler(options, context, self.own)
        parts = self.functions, self.own, self.compiler
        cycle, scan = self.functions.cycle, self.functions.scan
        self.outputs = EntryPoint("outputs", cycle, *parts, takes_state=False)
        self.step = EntryPoint("step", cycle, *parts, donates=options.donate_state)
        self.scan = EntryPoint("scan", scan, *parts, time_axes=1)
