"""How a network runs, once it is read.

`execution` puts the parts together. `functions` holds the network as pure functions, and
`entry_point` the ways into it. `own_arrays` puts stored data on devices. `compiler` compiles, as
`options` say. `disk_cache` keeps what is compiled: `cache_key` names it, `array_file` and
`checked_file` write its files. What reads a document, or knows a format, belongs elsewhere.
"""
