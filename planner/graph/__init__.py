"""The graph of ATen operations, and the table that says what each of them is."""
