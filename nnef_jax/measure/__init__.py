"""Measures networks: time by operation, latency, cost, weights, and differences of two networks.

Where are the instructions of XLA assigned to operations? `instructions`
Where do other engines run? `engines`
Where are operations of two documents paired? `pairing`
"""
