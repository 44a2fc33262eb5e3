"""Networks run through nnef_jax and other engines in one process: `python -m benchmarks --help`."""
