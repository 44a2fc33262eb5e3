"""NNEF as text: grammar, syntax tree, types, checks, the standard library, evaluation, flattening, printing."""
