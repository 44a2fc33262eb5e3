"""Parts of networks: the tensors that bound a part, its graph, and shapes for its inputs."""
