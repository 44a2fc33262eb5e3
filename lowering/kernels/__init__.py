"""How the hard operations are computed: window arithmetic, convolution, pooling, interpolation, alignment."""
