"""Layouts and kernels of a CPU."""
