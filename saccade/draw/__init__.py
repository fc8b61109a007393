"""Boxes and regions drawn onto pictures, in colours that stay apart for most eyes."""
