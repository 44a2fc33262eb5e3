"""Shows a network as an HTML page (`nnef_jax.view`, `nnef-jax view`) and as a notebook's card."""
