"""Models: calls, state, compilation, optimisation, whole networks."""
