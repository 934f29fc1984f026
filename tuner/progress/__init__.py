"""The progress of a tune, and how a terminal or a notebook shows it."""
