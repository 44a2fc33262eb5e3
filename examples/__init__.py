"""Show what to do with networks: each file is a script, `python -m examples` runs them all."""
