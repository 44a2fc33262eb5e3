"""From a flat graph to a pure JAX function. Knows no file format; imports neither nnef_jax nor lark."""
