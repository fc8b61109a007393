"""Run trained models on picture files: classes, boxes, masks, enlarged pictures."""
