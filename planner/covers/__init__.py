"""Which groups a graph is divided into: the cheapest cover."""
