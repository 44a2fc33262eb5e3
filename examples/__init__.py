"""Examples, each a script: `python examples/saliency.py`. `python -m examples` runs all."""
