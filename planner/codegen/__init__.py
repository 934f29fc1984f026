"""From a nest and a config to Triton source."""
