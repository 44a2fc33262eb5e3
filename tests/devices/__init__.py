"""Programs compiled for devices that are not attached: `pytest -m devices`, with the extra devices.

Nothing runs. What a compiler refuses is in `limits.py`.
"""
