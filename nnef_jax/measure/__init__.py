"""Measurements of networks: time by operation, latency, cost, weights, and differences of two."""
