"""Covers: the groups that a graph is divided into, and the search for the cheapest."""
