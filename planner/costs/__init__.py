"""What a kernel costs on a device: its work, its registers, its time."""
