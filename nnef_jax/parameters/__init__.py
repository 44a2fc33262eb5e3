"""Parameters by name: which are trained, PyTorch's names for them, their axes over a mesh."""
