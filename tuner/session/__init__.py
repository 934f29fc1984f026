"""A whole tune, from the model to the stored plan."""
