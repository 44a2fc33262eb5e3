"""NNEF as text: grammar, syntax tree, types, checks, standard library, flattening, printing."""
