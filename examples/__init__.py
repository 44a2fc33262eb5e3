"""Examples of what to do with networks. Each file is a script. `python -m examples` runs all."""
