"""Important lines, each broken once, and the tests that are to notice."""
