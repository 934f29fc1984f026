"""Ways to run a group, one file each."""
