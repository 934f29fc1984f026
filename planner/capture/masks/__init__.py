"""Masks that follow from positions and constants, and what attention makes of them."""
