"""Algebra on values that are read along a looped axis: online, split and joined reductions."""
