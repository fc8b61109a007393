"""The command that makes a COCO set of another: `saccade convert`."""

from pathlib import Path

from saccade.cli.console import console


def convert(source: Path, out: Path, classes: Path | None = None) -> None:
    """Make a COCO set of boxes in VOC's xml or YOLO's text.

    `saccade convert VOC2007 cells`, then `saccade train … --data cells`. Pictures are linked where
    the disk can, so they take no further room.

    Args:
        source: a folder with Annotations/*.xml and JPEGImages, or with images/ and labels/
        out: the folder to write, new or empty
        classes: a file with a class a line; the set's own if not given
    """
    from saccade.data.convert import convert as made

    done = made(source, out, classes)
    for split, found in done.splits.items():
        said = f"{split}: {found.images} images with {found.boxes} boxes"
        _say(said + (f", {found.empty} images without any" if found.empty else ""))
    names = ", ".join(done.classes[:10]) + (", ..." if len(done.classes) > 10 else "")
    _say(f"{len(done.classes)} classes: {names}")
    for note in done.notes:
        _say(note)
    _say(f"read as {done.format}, written to {out}")


def _say(sentence: str) -> None:
    console.print(sentence, highlight=False, markup=False, soft_wrap=True)
