"""The files of `pytest -m quick` by room: tests that a careless change breaks first.

They take a minute on two cores. A test that takes seconds is in another file.
"""

from __future__ import annotations

from pathlib import Path

QUICK = {
    "analysis": "results comparison",
    "cli": "cli_run cli_values",
    "execution": "arguments citizen direct model network recurrent state_dict trainable unused",
    "formats": "outline quantization_errors toy tract_data tract_dialect tract_errors tract_flatten"
    " tract_parser tract_types values",
    "generation": "token_sampling",
    "lowering": "builder extents graph machine pipeline rules tracing",
    "lowering/kernels": "broadcast contraction levels precision rounding",
    "lowering/passes": "attention chunks folding gates layouts siblings sums",
    "measure": "attribution cost difference topologies weights",
    "onnx": "control files moves",
    "openvino": "documents files names shapes state",
    "openvx": "errors kernel_import profile tensor",
    "operations": "kinds numerics op_case_table reference reference_numpy rules together",
    "repository": "docs notebooks packages repository words",
    "serving": "protocol serving",
    "storage": "archive folder packed_items tensorfile zip",
    "text": "checks evaluation expressions flatten mutations parser print_graph provisional",
    "viewing": "card page",
}

FILES = frozenset(
    Path(__file__).parent / room / f"test_{name}.py"
    for room, names in QUICK.items()
    for name in names.split()
)
