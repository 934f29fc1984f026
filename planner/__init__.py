"""Pure planning, code generation and runtime: no store, no tuner, no optuna below this line."""
