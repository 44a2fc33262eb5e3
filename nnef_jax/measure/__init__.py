"""Measurements of networks: time by operation, latency, cost, weights, differences of two.

Where are the instructions of XLA assigned to operations? `instructions`
Where do other engines run? `engines`
Where are operations of two documents paired? `pairing`
"""
