"""The search: which nodes share a kernel, and the config of each kernel."""
