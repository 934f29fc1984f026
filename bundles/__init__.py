"""Signed bundles: plans, their evidence and machine code in one file, for another machine."""
