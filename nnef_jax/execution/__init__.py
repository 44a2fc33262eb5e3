"""Runs networks that were read.

`functions` holds the network as pure functions, and the ways into it. `execution` runs it on a
model's own arrays, which are put on devices. `compiler` compiles, as `options` say, once for all
`threads`. `definition` is all of a model but its arrays. `disk_cache` keeps what is compiled:
`cache_key` names it, `checked_file` writes its files. `meshes` runs networks where types tell how
arrays are sharded. What reads a document, or knows a format, belongs elsewhere.
"""
