"""Tests of what measures networks and compares them as documents."""
