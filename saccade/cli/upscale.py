"""`upscale`: pictures with more pixels."""

from pathlib import Path
from typing import Annotated

from saccade.cli.command import Device, ModelName, Pictures, Side, Value
from saccade.cli.console import say, show_json
from saccade.cli.unread import Unread


def upscale(
    files: Pictures,
    *,
    model: ModelName | None = None,
    out: Annotated[Path, Value("FOLDER", "files")] = Path("upscaled"),
    window: Side | None = None,
    json: bool = False,
    device: Device | None = None,
) -> None:
    """Enlarge pictures two, three or four times a side, by the factor the model was trained for.

    Examples:
        saccade upscale photos/ --model runs/upscale
        saccade upscale poster.jpg --window 512 --out large

    Args:
        files: pictures, folders of pictures, patterns in quotes, or - for a list on stdin
        model: a run's folder or a saved model; the newest of runs/ if left out
        out: where NAME_x2.png is written (or x3, x4)
        window: cut pictures into windows of this many pixels a side; those of more than four
            million pixels are cut anyway, into windows of 1024
        json: print a JSON line a picture
        device: the best there is if left out
    """
    from saccade.cli.learn import newest
    from saccade.infer.upscale import upscaled

    unread = Unread(json)
    results = upscaled(files, model or newest("upscale"), out, device, window)
    for file, result in unread.pass_over(results):
        if json:
            line = {"file": file, "picture": str(result.picture)}
            show_json({**line, "before": result.before, "after": result.after})
        else:
            (w, h), (W, H) = result.before, result.after
            say(f"{file} -> {result.picture}: {w} x {h} to {W} x {H} pixels")
    unread.end()
