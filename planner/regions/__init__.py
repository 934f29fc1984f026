"""Groups that are walked together, in chunks or with values computed again."""
