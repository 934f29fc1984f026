"""What a kernel costs on a device, and the space of its configs."""
