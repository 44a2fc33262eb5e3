"""NNEF's language, for every format that is written in it: nothing here knows a format."""
