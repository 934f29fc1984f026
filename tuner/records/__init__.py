"""What a tune writes down: trials, what the compiler made, the best so far, Optuna's tables."""
