"""`segment`: the class of every pixel, as overlays and masks."""

from pathlib import Path
from typing import Annotated

from saccade.cli.command import Count, Device, ModelName, Pictures, Side, Value
from saccade.cli.console import note, say, show_json
from saccade.cli.unread import Unread


def segment(
    files: Pictures,
    *,
    model: ModelName | None = None,
    out: Annotated[Path, Value("FOLDER", "files")] = Path("segmented"),
    window: Side | None = None,
    short: Side | None = None,
    batch: Count = 4,
    tta: bool = False,
    json: bool = False,
    device: Device | None = None,
) -> None:
    """Name the class of every pixel: an overlay with a legend, and a mask of ids, for each picture.

    Examples:
        saccade segment cat.jpg
        saccade segment photos/ --model runs/segment
        saccade segment large.jpg --short 1024 --window 512 --out masks

    Args:
        files: pictures, folders of pictures, patterns in quotes, or - for a list on stdin
        model: a run's folder, a saved model, or the name of one that comes with saccade; the
            newest segmenter of runs/ if left out, or else one that comes with saccade
        out: where NAME_overlay.png and NAME_mask.png are written
        window: cut each resized picture into overlapping windows of this many pixels a side
        short: resize pictures to this short side; as in the model's evaluation if left out
        batch: pictures that go through the model together, if they are of one size
        tta: put every picture through the model six times: three sizes, each mirrored too
        json: print a JSON line a picture
        device: the best there is if left out
    """
    from saccade.cli.learn import newest_or_own
    from saccade.infer.segment import segmented

    unread, largest = Unread(json), 0
    chosen = model or newest_or_own("segment")
    results = segmented(files, chosen, out, device, window, short, batch, tta)
    for file, result in unread.pass_over(results):
        largest = max(largest, *result.size)
        if json:
            line = {"file": file, "overlay": str(result.overlay), "mask": str(result.mask)}
            show_json({**line, "shares": result.shares})
        else:
            most = ", ".join(f"{name} {100 * s:.0f}%" for name, s in [*result.shares.items()][:5])
            say(f"{file} -> {result.overlay}: {most}")
    if window is not None and 0 < largest <= window:
        note(f"no window was needed: resized pictures have {largest} pixels or less; see --short")
    unread.end()
