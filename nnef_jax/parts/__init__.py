"""Cuts parts out of networks: finds a part's boundary tensors, its graph and its input shapes.

Where is the request of `Model.cut` checked? `cutting`
Where is a part cut out of the graph? `part`
"""
