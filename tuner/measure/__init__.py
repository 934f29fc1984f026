"""Time on the device: one candidate, candidates in turn, the contest, and the device itself."""
