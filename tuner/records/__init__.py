"""Records of a tune: trials, what the compiler made, the best so far, Optuna's tables."""
