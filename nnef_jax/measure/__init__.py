"""What a network costs and how two differ: time by operation, latency, work, weights, structure."""
