"""One trial: a candidate, the inputs it runs on, the reference it answers to, and its outcome."""
