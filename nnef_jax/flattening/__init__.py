"""What all formats share when they flatten: operations into a graph, values known before a run."""
