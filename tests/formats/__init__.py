"""What reads and writes formats: tract's dialect, graph.quant, conversion; hostile documents."""
