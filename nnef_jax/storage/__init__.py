"""NNEF as files: containers, tensor files, and the labels that name them.

Modules here know bytes and paths, and nothing of the text of a document. `archive` opens a
container (`folder`, `tarball`), `writer` writes one, `tensorfile` reads and writes tensors.
`temporaries` and `placing` make what is written complete before it has its name.
"""
