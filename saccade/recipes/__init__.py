"""How a model is trained, as data: frozen dataclasses, and nothing of torch."""
