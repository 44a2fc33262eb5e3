"""The passes for any platform, each in a file of its own.

The function `run(program, target)` of a pass returns the rewritten program. The docstring of a pass
states its gain. `lowering.targets` lists the passes in order.

Where are scales folded into filters? `folding`
Where are sharded axes followed through a program? `spread`
"""
