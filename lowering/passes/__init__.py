"""Passes: a rewrite a file, `run(program, target)` returns the program that takes its place.

A pass says in its docstring what it earns. `lowering.targets` lists them in order.
"""
