"""NNEF as files: the container, the tensor files in it, and how a variable's label names its file.

What belongs here knows bytes and paths, and nothing of the text of a document: `archive` opens a
container for reading (`folder` and `tarball` are the two kinds), `writer` writes one, `tensorfile`
reads and writes tensors (`bitstream` packs their narrow items), `labels` maps labels to members,
`alignment` makes arrays that a device takes without a copy, and `files` holds what the others need
of the file system. What is written is complete before it has its name: `temporaries` makes what
`placing` puts in place.
"""
