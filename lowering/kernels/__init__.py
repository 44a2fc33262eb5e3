"""Functions of arrays that compute hard operations on any platform; rules and passes call them.

Where is NNEF's automatic padding computed? `windows`
Where are shapes broadcast? `broadcast`
Where is the precision of a computation chosen? `precision`
"""
