"""The command that makes a COCO set of another: `saccade convert`."""

from pathlib import Path
from typing import Annotated

from saccade.cli.command import File, Value
from saccade.cli.console import note, say, show_json


def convert(
    source: Annotated[Path, Value("SOURCE", "files")],
    out: Annotated[Path, Value("OUT", "files")],
    *,
    classes: File | None = None,
    json: bool = False,
) -> None:
    """Make a COCO set of boxes in VOC's xml or YOLO's text.

    Pictures are linked where the disk can, so they take no further room.

    Examples:
        saccade convert VOC2007 cells
        saccade train detect --data cells

    Args:
        source: a folder with Annotations/*.xml and JPEGImages, or with images/ and labels/
        out: the folder to write, new or empty
        classes: a file with a class a line; the set's own if left out
        json: print JSON
    """
    from saccade.data.convert import convert as to_coco

    done = to_coco(source, out, classes)
    if json:
        splits = {
            name: {"images": split.images, "boxes": split.boxes, "empty": split.empty}
            for name, split in done.splits.items()
        }
        show_json(
            {"format": done.format, "out": str(out), "splits": splits,
             "classes": list(done.classes), "notes": list(done.notes)}
        )  # fmt: skip
        return
    for name, split in done.splits.items():
        sentence = f"{name}: {split.images} images with {split.boxes} boxes"
        say(sentence + (f", {split.empty} images without any" if split.empty else ""))
    names = ", ".join(done.classes[:10]) + (", ..." if len(done.classes) > 10 else "")
    say(f"{len(done.classes)} classes: {names}")
    for sentence in done.notes:
        note(sentence)
    say(f"read as {done.format}, written to {out}")
