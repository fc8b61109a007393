"""Example pictures of an evaluation for the report, with captions: those that a metric names.

A metric may name them in its `tables()`: "examples": {title: [{"index": i, "caption": text}]}. The
picture is read once more and made small; a task that finds boxes or regions draws its prediction
beside the truth (`TaskDefinition.example`).
"""

import base64
import io
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from saccade.data.picture import Unreadable
from saccade.tasks.definition import TaskDefinition

SIDE = 360  # pixels of a drawn example's long side; half of it for a picture alone
MOST = 12  # of a kind


def draw_examples(
    definition: TaskDefinition, task: Any, transform: Any, images: Any, tables: dict[str, Any]
) -> dict[str, list[dict[str, str]]]:
    """The examples that tables name, by title: captions, and JPEGs in base64.

    Args:
        definition: the task's
        task: in eval mode, with the weights that were evaluated
        transform: an evaluated picture to what the network is shown
        images: what was evaluated
        tables: what the metric left
    """
    return {
        str(title): [
            one
            for row in rows[:MOST]
            if (one := _draw_one(definition, task, transform, images, row)) is not None
        ]
        for title, rows in tables.get("examples", {}).items()
    }


@torch.no_grad()
def _draw_one(
    definition: TaskDefinition, task: Any, transform: Any, images: Any, row: dict[str, Any]
) -> dict[str, str] | None:
    try:
        photo, target = images.read(row["index"])
    except (Unreadable, OSError):  # the file was removed meanwhile
        return None
    if not isinstance(photo, Image.Image):
        photo = Image.fromarray(photo)
    sheet, side = photo.convert("RGB"), SIDE // 2
    if definition.example is not None:
        device = next(task.parameters()).device
        image = transform(photo)[None].to(device)
        size = torch.tensor([image.shape[2:]], device=device)
        (prediction,) = task.predict(task.infer(image, size), [(photo.height, photo.width)])
        answer = definition.answer(task, prediction, sheet, "")
        sheet, side = definition.example(task, sheet, target, answer), 2 * SIDE
    sheet.thumbnail((side, side))
    stream = io.BytesIO()
    sheet.save(stream, "JPEG", quality=80)
    jpeg = base64.b64encode(stream.getvalue()).decode()
    file = Path(images.name(row["index"])).name
    return {"caption": f"{row.get('caption', '')}; {file}", "jpeg": jpeg}
