"""Functions of arrays that compute the harder operations, for any platform.

Rules and passes call these functions.

Where is NNEF's automatic padding computed? `windows`
Where are shapes broadcast? `broadcast`
Where is the precision of a computation chosen? `precision`
"""
