"""Passes, kernels and compiler options that only a CPU has."""
