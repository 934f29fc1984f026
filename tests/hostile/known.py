"""Cases that fail today. `scripts/hostile` runs them all the same and says which pass again: those
are to be taken out."""

KNOWN = frozenset(
    [
        "in-place/copy_transposed",
        "in-place/gradient_of_a_written_copy",
        "products/interpolate_bytes",
        "scenarios/a_deep_copy_of_a_compiled_model",
        "special/fmod_grid_f64",
        "sums/tall_columns",
    ]
)
