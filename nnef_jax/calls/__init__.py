"""Arguments and results of calls: their checks, batches of any size, trimming of results."""
