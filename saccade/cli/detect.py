"""`detect`: boxes drawn onto pictures, and written as COCO results."""

import json as js
from pathlib import Path

from saccade.cli.console import console


def detect(
    files: list[str],
    model: Path | None = None,
    out: Path = Path("detected"),
    score: float = 0.3,
    json: bool = False,
    device: str | None = None,
) -> None:
    """Find things in pictures: boxes drawn onto copies, and a COCO result file.

    Args:
        files: pictures, folders of pictures (frames of a video), or patterns such as "photos/*.jpg"
        model: a run's folder or a saved model; the newest detector of runs/ if not given
        out: folder for the drawn pictures and results.json
        score: how sure the model must be of a box, 0 to 1
        json: print the results instead, and draw nothing
        device: cpu or cuda; the best there is if not given
    """
    from saccade.cli.learn import newest
    from saccade.engine.boxed import drawn
    from saccade.engine.detect import Detector, number
    from saccade.engine.predict import free

    if not 0 <= score <= 1:
        raise ValueError(f"detect: a score lies in 0..1, got {score:g}; try 0.3")
    detector = Detector(model or newest("detect"), device)
    results, named, unread, taken = [], {}, 0, set()
    for place, (path, photo, found, said) in enumerate(detector.over(files, score), 1):
        if photo is None or found is None:
            unread += 1
            console.print(said, style="yellow", highlight=False, markup=False, soft_wrap=True)
            continue
        image = number(path, place)
        image = max(named) + 1 if image in named else image
        named[image] = str(path)
        results += detector.coco(image, found)
        if json:
            continue
        out.mkdir(parents=True, exist_ok=True)
        target = out / f"{free(path.stem, taken)}.png"
        drawn(photo, found, detector.classes).save(target)
        counts = ", ".join(_counted([detector.classes[i] for i in found.labels.tolist()]))
        told = f"{path}: {counts or 'nothing'} -> {target}"
        console.print(told, highlight=False, markup=False, soft_wrap=True)
    if json:
        print(js.dumps(results))
    elif named:
        (out / "results.json").write_text(js.dumps(results))
        (out / "images.json").write_text(js.dumps(named, indent=1))
        told = f"{len(results)} boxes in {len(named)} pictures: {out / 'results.json'}"
        console.print(told, highlight=False, markup=False, soft_wrap=True)
    if unread:
        raise SystemExit(1)


def _counted(names: list[str]) -> list[str]:
    """`2 dog_head, 1 cat_head`, the most frequent first."""
    found = {name: names.count(name) for name in names}
    return [f"{count} {name}" for name, count in sorted(found.items(), key=lambda p: -p[1])]
