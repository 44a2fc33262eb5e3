"""Parameters by name: which are trained, PyTorch's names for them, their axes over a mesh.

Where is `Model.trainable` decided? `trainable`
Where are PyTorch's names matched with labels? `state_dict`, `module_names`
Where are the axes of sharded parameters chosen? `sharding`
"""
