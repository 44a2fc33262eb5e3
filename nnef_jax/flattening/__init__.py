"""The parts of flattening for all formats: adding operations, and values known before a run."""
