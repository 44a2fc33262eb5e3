"""`python -m nnef_jax`: the command line."""

from __future__ import annotations

import sys

from nnef_jax.cli import main

if __name__ == "__main__":
    sys.exit(main())
