"""From a flat graph to a pure JAX function. It knows no file format and no parser."""
