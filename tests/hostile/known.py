"""Cases that fail today. `scripts/hostile` runs them all the same and says which pass again: those
are to be taken out."""

KNOWN = frozenset(
    [
        "products/interpolate_bytes",
        "special/fmod_grid_f64",
        "sums/tall_columns",
    ]
)
