"""`segment`: the class of every pixel, as overlays and masks."""

from pathlib import Path
from typing import Annotated

from saccade.cli.command import Count, Device, ModelName, Pictures, Side, Value
from saccade.cli.console import note, say, show_json
from saccade.cli.unread import Unread


def segment(
    files: Pictures | None = None,
    *,
    source: Annotated[int, Value("CAMERA")] | None = None,
    model: ModelName | None = None,
    out: Annotated[Path, Value("FOLDER", "files")] = Path("segmented"),
    window: Side | None = None,
    short: Side | None = None,
    batch: Count = 4,
    tta: bool = False,
    watch: bool = False,
    most: Count | None = None,
    json: bool = False,
    device: Device | None = None,
) -> None:
    """Name the class of every pixel: an overlay with a legend, and a mask of ids, for each picture.

    Of a video or a camera: OUT/NAME.mp4 under its regions' colours, and NAME.jsonl with the shares
    of the classes, a line a frame.

    Examples:
        saccade segment cat.jpg
        saccade segment photos/ --model runs/segment
        saccade segment large.jpg --short 1024 --window 512 --out masks
        saccade segment clip.mp4 --model runs/segment

    Args:
        files: pictures, folders of pictures, patterns in quotes, videos, or - for a list on stdin
        source: a camera by its number, instead of files; ends by Ctrl-C or --most
        model: a run's folder, a saved model, or the name of one that comes with saccade; the
            newest segmenter of runs/ if left out, or else one that comes with saccade
        out: where NAME_overlay.png and NAME_mask.png are written
        window: cut each resized picture into overlapping windows of this many pixels a side
        short: resize pictures to this short side; as in the model's evaluation if left out
        batch: pictures that go through the model together, if they are of one size
        tta: put every picture through the model six times: three sizes, each mirrored too
        watch: look into one folder for new pictures, until Ctrl-C or --most
        most: end after so many frames, or pictures that are watched for
        json: print a JSON line a picture, or a frame of a video
        device: the best there is if left out
    """
    from saccade.cli.learn import newest_or_own
    from saccade.cli.video import segment_in, videos
    from saccade.infer.segment import Segmenter, segmented

    clips = videos(files, source, "segment")
    words = list(files or ())
    if watch and (clips or len(words) != 1):
        raise ValueError("segment: --watch takes one folder of pictures")
    if most is not None and (most < 1 or not (clips or watch)):
        raise ValueError("segment: --most is for videos, --source and --watch, and at least 1")
    unread, largest = Unread(json), 0
    model_path = model or newest_or_own("segment")
    if clips:
        ready = Segmenter(model_path, device, window, short, tta)
        for clip in clips:
            segment_in(clip, ready.task, ready.transform, ready.device, out, batch, most, json)
        return
    results = segmented(
        words, model_path, out, device, window, short, batch, tta, watch=watch, most=most
    )
    for file, result in unread.pass_over(results):
        largest = max(largest, *result.size)
        if json:
            line = {"file": file, "overlay": str(result.overlay), "mask": str(result.mask)}
            show_json({**line, "shares": result.shares})
        else:
            shares = ", ".join(f"{name} {100 * s:.0f}%" for name, s in [*result.shares.items()][:5])
            say(f"{file} -> {result.overlay}: {shares}")
    if window is not None and 0 < largest <= window:
        note(f"no window was needed: resized pictures have {largest} pixels or less; see --short")
    unread.end()
