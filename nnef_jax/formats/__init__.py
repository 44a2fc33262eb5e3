"""The formats that networks are read from, a folder each."""
