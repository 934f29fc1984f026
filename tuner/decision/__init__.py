"""Which of all ways to run a model is kept: baselines, finalists, and the rule between them."""
