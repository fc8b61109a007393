"""From a recipe to a trained, evaluated and documented model."""
