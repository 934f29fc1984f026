"""The gate: whether a kernel or a plan computes what its graph does."""
