"""Benchmarks that compare nnef_jax with other engines: `python -m benchmarks --help`."""
