"""The command that makes a set saccade reads of another: `saccade convert`."""

from pathlib import Path
from typing import Annotated, Literal

from saccade.cli.command import File, Value
from saccade.cli.console import note, say, show_json

Format = Literal["voc", "yolo", "voc-masks", "cityscapes", "stuff", "panoptic", "masks", "outlines"]


def convert(
    source: Annotated[Path, Value("SOURCE", "files")],
    out: Annotated[Path, Value("OUT", "files")],
    *,
    format: Format | None = None,
    classes: File | None = None,
    colours: File | None = None,
    json: bool = False,
) -> None:
    """Make a set that saccade reads of one in another format.

    Boxes (VOC's xml, YOLO's text) become a COCO set; a class for every pixel (VOC's
    SegmentationClass, Cityscapes, COCO-Stuff, COCO's panoptic segments or outlines, masks of ids or
    of colours) becomes images/, masks/ and classes.json. Files are linked where the disk can, so
    they take no further room.

    Examples:
        saccade convert VOC2007 cells
        saccade train detect --data cells
        saccade convert VOC2012 regions --format voc-masks
        saccade convert cityscapes streets
        saccade convert CamVid roads --colours class_dict.csv
        saccade train segment --data roads

    Args:
        source: the folder of the set, as it was unpacked
        out: the folder to write, new or empty
        format: what the set is; by its layout if left out
        classes: a file with a class a line; the set's own if left out
        colours: what the colours of masks mean: a file with lines `name,r,g,b`, CVAT's
            labelmap.txt or json; one beside the masks if left out
        json: print JSON
    """
    from saccade.data.convert.run import convert as converted

    result = converted(source, out, classes, format, colours)
    if json:
        splits = {name: split._asdict() for name, split in result.splits.items()}
        show_json(
            {"format": result.format, "out": str(out), "splits": splits,
             "classes": list(result.classes), "notes": list(result.notes)}
        )  # fmt: skip
        return
    for name, split in result.splits.items():
        boxes = getattr(split, "boxes", None)
        what = "masks" if boxes is None else f"{boxes} boxes"
        empty = getattr(split, "empty", 0)
        sentence = f"{name}: {split.images} images with {what}"
        say(sentence + (f", {empty} images without any" if empty else ""))
    names = ", ".join(result.classes[:10]) + (", ..." if len(result.classes) > 10 else "")
    say(f"{len(result.classes)} classes: {names}")
    for sentence in result.notes:
        note(sentence)
    say(f"read as {result.format}, written to {out}")
