"""The table of operations: values, gradients, batches; the reference; decided numerics."""
