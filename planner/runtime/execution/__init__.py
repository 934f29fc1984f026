"""The executor of a plan: its groups in order, and ATen between them."""
