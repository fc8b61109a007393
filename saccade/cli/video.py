"""Videos and cameras for `detect` and `segment`: a drawn copy, and what is in each frame."""

import json as js
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from saccade.cli.console import note, say, show_json
from saccade.files import replacing


def videos(words: Sequence[str] | None, source: int | None, command: str) -> list[str | int]:
    """The videos that are meant: a camera, or files that all are videos; none if none is."""
    from saccade.infer.video import is_video

    names = list(words or ())
    if source is not None:
        if names:
            raise ValueError(f"{command}: --source {source} is a camera; give no files beside it")
        return [source]
    if not names:
        raise ValueError(f"{command}: PICTURES is missing; give pictures, a video, or --source 0")
    clips = [name for name in names if is_video(name)]
    if clips and len(clips) < len(names):
        raise ValueError(f"{command}: videos and pictures in one call; give them apart")
    return [*clips]


def detect_in(
    source: str | int, detector: Any, out: Path, score: float, batch: int, track: bool,
    most: int | None, json: bool,
) -> None:  # fmt: skip
    """Boxes in each frame: OUT/NAME.mp4, OUT/NAME.jsonl, and with tracks OUT/NAME.txt (MOT)."""
    import torch

    from saccade.draw.boxes import draw_boxes
    from saccade.infer.track import Tracker

    tracker = Tracker(high=score) if track else None
    least = score / 2 if track else score  # a track goes on with boxes that begin none
    name = _name(source)
    counts, tracks = [0, 0], set()
    with _Outputs(out, name, json, track) as outputs:
        for frame, boxes in _predicted(source, detector.task, detector.transform,
                                       lambda output, sizes: detector.predict(output, sizes, least),
                                       detector.device, batch, most):  # fmt: skip
            ids = None
            if tracker is not None:
                ids = tracker(*(part.numpy() for part in (boxes.boxes, boxes.labels, boxes.scores)))
                tracks |= set(ids.tolist()) - {0}
                drawn_boxes = (boxes.scores >= score) | (torch.from_numpy(ids) > 0)
                boxes = type(boxes)(*(part[drawn_boxes] for part in boxes))
                ids = ids[drawn_boxes.numpy()]
            rows = _rows(boxes, detector.classes, ids)
            counts[0], counts[1] = counts[0] + 1, counts[1] + len(rows)
            outputs.line({"frame": frame.number, "time": round(frame.time, 3), "objects": rows})
            if ids is not None:
                outputs.mot(frame.number, boxes, ids)
            if not json:
                numbers = () if ids is None else ids.tolist()
                picture = draw_boxes(frame.photo, boxes, detector.classes, numbers=numbers)
                outputs.picture(picture, frame)
    if not json:
        more = f", {len(tracks)} tracks" if track else ""
        say(f"{counts[1]} boxes in {counts[0]} frames{more}: {out / name}.mp4")


def segment_in(
    source: str | int, task: Any, transform: Any, device: Any, out: Path, batch: int,
    most: int | None, json: bool,
) -> None:  # fmt: skip
    """Regions in each frame: OUT/NAME.mp4 and OUT/NAME.jsonl."""
    from saccade.draw.masks import tinted

    classes, name, count = list(task.classes), _name(source), 0
    with _Outputs(out, name, json, False) as outputs:
        for frame, labels in _predicted(source, task, transform, task.predict, device, batch, most):
            mask = labels.cpu().numpy()
            shares = np.bincount(mask.ravel(), minlength=len(classes)) / mask.size
            order = [int(i) for i in np.argsort(-shares, kind="stable") if shares[i]]
            count += 1
            shares_by_class = {classes[i]: round(float(shares[i]), 5) for i in order}
            row = {"frame": frame.number, "time": round(frame.time, 3), "shares": shares_by_class}
            outputs.line(row)
            if not json:
                outputs.picture(tinted(frame.photo, mask, classes), frame)
    if not json:
        say(f"{count} frames: {out / name}.mp4")


def _name(source: str | int) -> str:
    return f"camera{source}" if isinstance(source, int) else Path(source).stem


def _predicted(
    source: str | int, task: Any, transform: Any, predict: Any, device: Any, batch: int,
    most: int | None,
) -> Iterator[tuple[Any, Any]]:  # fmt: skip
    """Frames with their predictions; frames of a camera one by one, of a file in batches."""
    import torch

    from saccade.infer.video import Broken, frames

    if batch < 1:
        raise ValueError(f"--batch: at least one frame at a time, got {batch}")
    stream: Iterable[Any] = frames(source, most)
    stream, size = iter(stream), 1 if isinstance(source, int) else batch
    while True:
        some = []
        try:
            for frame in islice(stream, size):
                some.append(frame)
        except Broken as error:
            note(str(error), "yellow")
        if not some:
            return
        groups: dict[tuple[int, int], list[Any]] = {}  # a stream may change its size
        for frame in some:
            groups.setdefault(frame.photo.size, []).append(frame)
        for (W, H), alike in groups.items():
            image = torch.stack([transform(frame.photo) for frame in alike]).to(device)
            with torch.no_grad():
                output = task.infer(
                    image, torch.tensor([image.shape[2:]] * len(alike), device=device)
                )
                answers = predict(output, [(H, W)] * len(alike))
            yield from zip(alike, answers, strict=True)


def _rows(boxes: Any, classes: Sequence[str], ids: Any) -> list[dict[str, Any]]:
    """Objects of a frame; `track` is their number, 0 while it is not known."""
    numbers = [None] * len(boxes.boxes) if ids is None else ids.tolist()
    return [
        {"label": classes[label], "score": round(score, 4),
         "box": [round(v, 1) for v in box], **({} if number is None else {"track": number})}
        for box, label, score, number in zip(
            boxes.boxes.tolist(), boxes.labels.tolist(), boxes.scores.tolist(), numbers, strict=True
        )
    ]  # fmt: skip


class _Outputs:
    """The files of a video: a drawn copy, a line of json a frame, and MOT's text."""

    def __init__(self, out: Path, name: str, json: bool, track: bool):
        self.out, self.name, self.json, self.track = out, name, json, track
        self.lines: list[str] = []
        self.mots: list[str] = []
        self.writer: Any = None

    def __enter__(self) -> "_Outputs":
        if not self.json:
            self.out.mkdir(parents=True, exist_ok=True)
        return self

    def line(self, row: dict[str, Any]) -> None:
        if self.json:
            show_json(row)
        else:
            self.lines.append(js.dumps(row))

    def mot(self, frame: int, boxes: Any, ids: Any) -> None:
        """frame, track, left, top, width, height, score, class, -1, -1: known tracks alone."""
        for (x0, y0, x1, y1), label, score, number in zip(
            boxes.boxes.tolist(), boxes.labels.tolist(), boxes.scores.tolist(), ids.tolist(),
            strict=True,
        ):  # fmt: skip
            if number:
                self.mots.append(
                    f"{frame},{number},{x0:.2f},{y0:.2f},{x1 - x0:.2f},{y1 - y0:.2f},"
                    f"{score:.4f},{label + 1},-1,-1"
                )

    def picture(self, photo: Any, frame: Any) -> None:
        from saccade.infer.video import Writer

        if self.writer is None:
            self.writer = Writer(self.out / f"{self.name}.mp4", Fraction(frame.rate))
        self.writer.write(photo, frame.time)

    def __exit__(self, *error: Any) -> None:
        """Also of a job that is interrupted: what was done so far is written."""
        if self.writer is not None:
            self.writer.__exit__(*error)
        if self.json or not self.lines:
            return
        parts = {".jsonl": self.lines} | ({".txt": self.mots} if self.track else {})
        for ending, lines in parts.items():
            with replacing(self.out / f"{self.name}{ending}") as file:
                file.write("".join(f"{line}\n" for line in lines).encode())
