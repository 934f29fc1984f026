"""The graphs that torch.compile captures from a model, and the model's inputs as they change."""
