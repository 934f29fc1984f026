"""Groups of nodes: each as a graph of its own, and which of them may become one."""
