"""Rewrites a traced function for speed: folded scales, layouts, kernels. Meaning stays the same."""
