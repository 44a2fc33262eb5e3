"""Shows a network as a page: `nnef_jax.view`, `nnef-jax view`, and the card of a notebook."""
