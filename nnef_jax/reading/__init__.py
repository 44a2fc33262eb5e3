"""Reads networks of any format: sources of bytes, the network that is read, unreadable files.

Code for a single format belongs in `nnef_jax.formats`.

Where is the graph made for the shapes of a call? `network`
Where are open extents guessed, and where is `input_shapes` checked? `document_graph`
Where does an error say what an unreadable file is? `foreign`
"""
