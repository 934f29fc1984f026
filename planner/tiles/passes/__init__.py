"""The passes that make a tile program, one decision in each file (their order is in `tile.py`)."""
