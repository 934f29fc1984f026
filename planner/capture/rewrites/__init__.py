"""Rewrites of captured FX graphs, one file each; `rewrite` has them in order."""
