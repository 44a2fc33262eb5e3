"""Runs networks that were read.

`definition` is what is run: the network as pure functions, whose ways in are an `entry` each.
`arrays` are a model's, on devices or a mesh. `executables` are what is kept: compiled functions, in
memory and in a `disk_cache`. `execution` runs the first on the second by the third. What reads a
document, or knows a format, belongs elsewhere.
"""
