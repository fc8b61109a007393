"""Use what tells pixels apart: `segment`."""

import json as js
from pathlib import Path

from saccade.cli.console import console
from saccade.cli.learn import newest


def segment(
    files: list[str],
    model: Path | None = None,
    out: Path = Path("segmented"),
    window: int | None = None,
    short: int | None = None,
    json: bool = False,
    device: str | None = None,
) -> None:
    """Tell what is where in pictures: an overlay with a legend and a mask of ids for each.

    Args:
        files: pictures, folders of pictures, or patterns such as "photos/*.jpg"
        model: a run's folder or a saved model; the newest of runs/ if not given
        out: the folder for NAME_overlay.png and NAME_mask.png
        window: look through windows of this many pixels, not at the whole, as it is shown
        short: short side at which pictures are shown to the model; as it was tested if not given
        json: print a JSON line a picture
        device: cpu or cuda; the best there is if not given
    """
    from saccade.infer.segment import segmented

    failed, largest, chosen = 0, 0, model or newest("segment")
    for file, found in segmented(files, chosen, out, device, window, short):
        largest = max(largest, 0 if isinstance(found, str) else max(found.size))
        if isinstance(found, str):
            failed += 1
            said = js.dumps({"file": file, "error": found}) if json else f"{file}: {found}"
            style = None if json else "yellow"
            console.print(said, style=style, highlight=False, soft_wrap=True, markup=False)
        elif json:
            line = {"file": file, "overlay": str(found.overlay), "mask": str(found.mask)}
            print(js.dumps({**line, "shares": found.shares}))
        else:
            most = ", ".join(f"{name} {100 * s:.0f}%" for name, s in [*found.shares.items()][:5])
            said = f"{file} -> {found.overlay}: {most}"
            console.print(said, highlight=False, soft_wrap=True, markup=False)
    if window is not None and 0 < largest <= window and not json:
        said = f"no window was needed: pictures are shown at {largest} pixels or less; see --short"
        console.print(said, highlight=False, soft_wrap=True, markup=False)
    if failed:
        raise SystemExit(1)
