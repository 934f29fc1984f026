"""The cost model: a kernel's work, registers and time on a device."""
