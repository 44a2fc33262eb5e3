"""Runs a network on a model's arrays.

`definition` holds the network as pure functions. An `entry` offers one of these functions for one
kind of call, such as a step or a scan. `arrays` holds the parameters and states, on devices or on a
mesh. `executables` holds the compiled functions, cached in memory and in a `disk_cache`.
`execution` runs a definition on arrays by executables. Code that reads documents, or knows a
format, belongs elsewhere.

Where is a program of many steps compiled? `routine`
Where is the device of a call determined? `places`, `arrays`
Where is a call computed within a user's trace? `definition`
Where is the state before the first cycle computed? `initial_state`
Where is the key of a compiled function computed? `cache_key`
Where does the cache check its files? `checked_file`
Which arrays have a NaN? `finite`
Where are the host's rates measured and stored? `host_profile`
"""
