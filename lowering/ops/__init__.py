"""The rules, one file for each family of operations. `nnef` is the registry of the standard's own."""
