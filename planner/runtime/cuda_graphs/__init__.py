"""Calls as CUDA graphs: recording, replay and the memory that they share."""
