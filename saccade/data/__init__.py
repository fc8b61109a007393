"""From files on disk to batches of images with their targets."""
