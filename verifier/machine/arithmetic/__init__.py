"""Float arithmetic of the device, bit for bit."""
