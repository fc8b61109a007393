"""Attention operators as pure functions: a readable reference beside each fast path."""
