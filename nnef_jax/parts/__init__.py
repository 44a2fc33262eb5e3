"""Cuts parts out of networks: the tensors that bound a part, the part's graph, and input shapes.

Where is the request of `Model.cut` checked? `cutting`
Where is a part cut out of the graph? `part`
"""
