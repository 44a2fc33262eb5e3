"""Reads and writes bytes: containers, tensor files, member names, atomic replacement of files.

Nothing in this package knows about graphs.

Where is a `.dat` file read? `tensorfile`
Where are links and devices refused? `archive`, `folder`, `files`
Where does a new file take the place of an old one? `placing`, `temporaries`
"""
