"""`detect`: boxes drawn onto pictures, and written as COCO results."""

import json as js
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from saccade.cli.command import Count, Device, File, ModelName, Pictures, Value
from saccade.cli.console import say, show_json
from saccade.cli.unread import Unread
from saccade.files import write, write_json


def detect(
    files: Pictures | None = None,
    *,
    source: Annotated[int, Value("CAMERA")] | None = None,
    model: ModelName | None = None,
    out: Annotated[Path, Value("FOLDER", "files")] = Path("detected"),
    score: float = 0.3,
    annotations: File | None = None,
    batch: Count = 4,
    tta: bool = False,
    save_txt: bool = False,
    crops: bool = False,
    track: bool = False,
    watch: bool = False,
    most: Count | None = None,
    json: bool = False,
    device: Device | None = None,
) -> None:
    """Find objects in pictures and videos: boxes drawn onto copies, and a file of results.

    Of a video or a camera: OUT/NAME.mp4 with the boxes drawn, NAME.jsonl with a line a frame, and
    with --track NAME.txt as MOT challenges have it.

    Examples:
        saccade detect photos/ --model runs/detect
        saccade detect frames/ --score 0.5 --json > results.json
        saccade detect photos/ --save-txt --crops
        saccade detect clip.mp4 --model runs/detect --track
        saccade detect --source 0 --model runs/detect

    Args:
        files: pictures, folders of pictures, patterns in quotes, videos, or - for a list on stdin
        source: a camera by its number, instead of files; ends by Ctrl-C or --most
        model: a run's folder or a saved model; the newest detector of runs/ if left out
        out: where the drawn pictures and results.json are written
        score: how sure the model must be of a box, 0 to 1
        annotations: a COCO json whose image ids the results take, by the names of the files
        batch: pictures that go through the model together, if they are of one size
        tta: put every picture through the model six times: three sizes, each mirrored too
        save_txt: write YOLO's lines too, labels/NAME.txt: class cx cy w h, and classes.txt
        crops: write each object too, cut out: crops/CLASS/NAME-1.png
        track: number the objects of a video from frame to frame
        watch: look into one folder for new pictures, until Ctrl-C or --most
        most: end after so many frames, or pictures that are watched for
        json: print the results instead, and draw nothing
        device: the best there is if left out
    """
    from saccade.cli.learn import newest_or_own
    from saccade.cli.video import detect_in, videos
    from saccade.infer.arrivals import arrivals
    from saccade.infer.batches import in_background
    from saccade.infer.detect import Detector, Numbers
    from saccade.infer.files import paths_of
    from saccade.infer.objects import write_names

    if not 0 <= score <= 1:
        raise ValueError(f"detect: a score lies in 0..1, got {score:g}; try 0.3")
    if json and (save_txt or crops):
        raise ValueError(
            "detect: --json prints and writes nothing; leave out --json, or --save-txt and --crops"
        )
    clips = videos(files, source, "detect")
    if clips and (save_txt or crops or watch or annotations):
        raise ValueError(
            "detect: --save-txt, --crops, --watch and --annotations are for pictures, not videos"
        )
    if track and not clips:
        raise ValueError("detect: --track is for a video or --source; leave it off for pictures")
    words = list(files or ())
    paths = [] if clips or watch else paths_of(words, "detect", out)
    if watch and len(words) != 1:
        raise ValueError(f"detect: --watch takes one folder, got {len(words)} words")
    if most is not None and (most < 1 or not (clips or watch)):
        raise ValueError("detect: --most is for videos, --source and --watch, and at least 1")
    detector = Detector(model or newest_or_own("detect"), device, tta)
    for clip in clips:
        detect_in(clip, detector, out, score, batch, track, most, json)
    if clips:
        return
    numbers = Numbers(annotations)
    sources, names_in_use = {path.resolve() for path in paths}, set()
    results: list[dict[str, Any]] = []
    names: dict[int, str] = {}
    unread = Unread()

    def recorded() -> Iterator[tuple[Any, Path]]:
        """Each picture that could be read, once its results are noted."""
        parts = arrivals(words[0], out, most) if watch else [paths]
        every = (one for part in parts for one in detector.over(part, score, batch))
        for place, objects in enumerate(every, 1):
            if objects.boxes is None:
                unread.note(str(objects.path), objects.error)
                continue
            unread.pictures += 1
            image = numbers.of(objects.path, place)
            names[image] = str(objects.path)
            results.extend(detector.coco(image, objects.boxes))
            yield objects, _target(objects.path, out, sources, names_in_use)

    def draw(job: tuple[Any, Path]) -> str:
        return _draw(*job, detector.classes, save_txt, crops)

    if save_txt:
        write_names(out / "labels", detector.classes)
    try:
        if json:
            deque(recorded(), maxlen=0)
        else:
            for sentence in in_background(draw, recorded()):
                say(sentence)
    finally:  # a job that is interrupted still writes the results so far
        if json:
            show_json(results)
        elif names:
            write(out / "results.json", js.dumps(results))
            write_json(out / "images.json", names)
            say(f"{len(results)} boxes in {len(names)} pictures: {out / 'results.json'}")
    unread.end()


def _target(path: Path, out: Path, sources: set[Path], names_in_use: set[str]) -> Path:
    """The file that a picture's copy is drawn into; never one of the pictures themselves."""
    from saccade.infer.files import free

    target = out / f"{free(path.stem, names_in_use)}.png"
    return (
        out / f"{free(f'{path.stem}_boxes', names_in_use)}.png"
        if target.resolve() in sources
        else target
    )


def _draw(objects: Any, target: Path, classes: list[str], save_txt: bool, crops: bool) -> str:
    """Draw one picture's boxes onto a copy; gives a sentence that names them."""
    from saccade.data.picture import rgb
    from saccade.draw.boxes import draw_boxes
    from saccade.files import writing
    from saccade.infer.batches import COMPRESSION
    from saccade.infer.objects import write_crops, write_labels

    photo = rgb(objects.path, str(objects.path))
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        draw_boxes(photo, objects.boxes, classes).save(target, compress_level=COMPRESSION)
    out, name, boxes = target.parent, target.stem, objects.boxes
    if save_txt:
        write_labels(out / "labels", name, boxes, photo.size)
    if crops:
        deque(write_crops(out / "crops", name, photo, boxes, classes), maxlen=0)
    counts = Counter(classes[i] for i in objects.boxes.labels.tolist()).most_common()
    things = ", ".join(f"{count} {name}" for name, count in counts)
    return f"{objects.path}: {things or 'nothing'} -> {target}"
