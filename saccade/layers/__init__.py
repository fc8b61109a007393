"""Attention as modules, tensor to tensor."""
