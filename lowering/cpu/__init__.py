"""Passes, kernels and compiler options that only a CPU has.

Where is the kernel of a convolution chosen? `convolution`, by the estimates of `kernel_costs`
Where are layouts chosen? `layouts`, by the rules of `view_rules` and `kernel_rules`
Where are the rates of the host measured? `rates`
"""
