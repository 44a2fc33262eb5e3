"""Networks as bytes: containers, tensor files, the labels that name them, atomic replacing."""
