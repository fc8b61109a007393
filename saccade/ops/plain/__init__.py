"""Forms in ordinary PyTorch that hold little memory and bring a backward of their own."""
