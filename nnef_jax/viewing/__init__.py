"""Shows a network as an HTML page (`nnef_jax.view`, `nnef-jax view`) and as a notebook's card.

Where are operations grouped? `modules`, `operation_tree`
Where is the data of the page made? `data`
"""
