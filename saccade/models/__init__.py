"""Backbones: image to feature maps."""
