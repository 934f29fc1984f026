"""From a plan to launched kernels."""
