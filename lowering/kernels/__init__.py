"""How the hard operations are computed: windows, convolution, pooling, interpolation."""
