"""Decides about parameters: which of them are trained, their names in PyTorch, their sharding.

Where is `Model.trainable` decided? `trainable`
Where are PyTorch's names matched with labels? `state_dict`, `module_names`
Where are the axes of sharded parameters chosen? `sharding`
"""
