"""Workers that share a tune's search: on other GPUs of this host, and on other hosts."""
