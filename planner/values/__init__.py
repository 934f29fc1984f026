"""A group's graph with its views gone: values over one set of factors, and what rewrites them."""
