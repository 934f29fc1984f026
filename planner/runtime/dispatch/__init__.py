"""From a graph of torch.compile, and a call, to what runs."""
