"""Wording of messages and output: similar names for hints, control characters escaped."""
