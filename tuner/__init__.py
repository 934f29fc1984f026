"""Search and measure: the only place that imports optuna. Wires planner, store and workers."""
