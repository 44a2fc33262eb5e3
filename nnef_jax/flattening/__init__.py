"""The steps of flattening that several formats share: operations, constants, loops, padded axes.

A module belongs in this package if at least two formats need it and its code names no format.

Where are shapes and other constants computed while a network is read? `host_operations`
Where are numbers and lists converted to host values? `hostvalues`
Where does an error get its place in the document? `emission`
Where are the bodies of loops built? `repetition`
Which tensors have a number of items that is counted in a run? `lists`, `list_operations`
"""
