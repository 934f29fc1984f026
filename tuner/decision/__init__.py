"""The decision at the end of a tune: baselines, finalists, and the rule between them."""
