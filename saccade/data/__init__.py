"""Images in."""
