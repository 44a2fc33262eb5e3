"""Matrix multiplication (spec 4.6) and the fully connected layer (4.8.2)."""

from __future__ import annotations

import numpy as np

from .elementwise import add
from .table import operation


@operation
def matmul(A, B, transposeA=False, transposeB=False):
    A = np.swapaxes(A, -1, -2) if transposeA else A
    B = np.swapaxes(B, -1, -2) if transposeB else B
    batch = np.broadcast_shapes(A.shape[:-2], B.shape[:-2])
    A = np.broadcast_to(A, batch + A.shape[-2:])
    B = np.broadcast_to(B, batch + B.shape[-2:])
    C = np.zeros([*batch, A.shape[-2], B.shape[-1]])
    for *b, i, j in np.ndindex(*C.shape):
        C[*b, i, j] = np.sum(A[*b, i, :] * B[*b, :, j])
    return C


@operation
def linear(input, filter, bias=0.0):
    return add(matmul(input, filter, transposeB=True), bias)
