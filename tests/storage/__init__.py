"""Bytes: archives, folders, tensor files, checked files, saves."""
