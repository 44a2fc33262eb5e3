"""Cuts parts out of networks: the tensors that bound a part, its graph, shapes for its inputs.

Where is the request of `Model.cut` checked? `cutting`
Where is a part cut out of the graph? `part`
"""
