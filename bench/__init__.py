"""Named workloads measured beside eager and torch.compile: what scripts/bench runs."""
