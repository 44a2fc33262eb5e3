"""Runs networks that were read.

`functions` holds the network as pure functions, and `entry_points` the ways into it. `own_arrays`
puts stored data on devices. `compiler` compiles, as `options` say, once for all `threads`.
`disk_cache` keeps what is compiled: `cache_key` names it, `checked_file` writes its files. `meshes`
runs networks where types tell how arrays are sharded. What reads a document, or knows a format,
belongs elsewhere.
"""
