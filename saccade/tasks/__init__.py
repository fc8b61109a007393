"""What models are for: feature maps to output, loss, prediction and metric."""
