"""The loops of a group, and where in them every operation stands."""
