"""Functions of arrays that compute hard operations on any platform; rules and passes call them."""
