"""Loops and places: the nest of a group, in one pass where several can become one."""
