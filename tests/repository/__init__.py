"""The repository itself: docs, examples, packages, benchmarks."""
