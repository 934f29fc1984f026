"""The tile program: a kernel written down as data, between its nest and its text."""
