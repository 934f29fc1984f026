"""Kernel text to machine code, and machine code launched."""
