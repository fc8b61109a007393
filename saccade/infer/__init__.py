"""Trained models on pictures: classes, boxes and masks."""
