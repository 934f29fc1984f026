"""The values of a group: loads, computations, reductions and stores over one set of factors."""
