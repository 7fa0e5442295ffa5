"""What is trained: from a task to parameters on a device that fits them."""
