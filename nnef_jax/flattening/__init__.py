"""Flattening that formats share: adding operations to a graph, and values known before a run."""
