"""Frames of a video file or a camera, and a video file of drawn frames, by PyAV.

    for frame in frames("clip.mp4"): ...        upright RGB pictures with their times
    with Writer("drawn.mp4", like=...) as out:  out.write(picture, frame)

A video may come from a stranger: it is read as the one file that it is, in a container of
CONTAINERS; playlists, and other files or addresses that one may name, are not opened.
"""

import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from PIL import Image

from saccade import files

ENDINGS = (".mp4", ".mov", ".m4v", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".wmv", ".flv")
CONTAINERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpeg,mpegts,asf,flv"
MOST = 100_000_000  # pixels of a frame
CAMERAS = {"linux": ("v4l2", "/dev/video{}"), "darwin": ("avfoundation", "{}")}
RATE = Fraction(25)  # frames a second where a file does not say it


class Frame(NamedTuple):
    """A picture of a video."""

    photo: Image.Image
    number: int
    """From 1."""
    time: float
    """Seconds since the first frame."""
    rate: Fraction
    """Frames a second of the whole video."""


def is_video(word: str) -> bool:
    return Path(word).suffix.lower() in ENDINGS


def frames(source: str | int, most: int | None = None) -> Iterator[Frame]:
    """The frames of a video file, or of a camera by its number.

    Args:
        source: a file, or 0 for the first camera
        most: so many frames at most
    """
    av = package()
    if isinstance(source, int):
        with _camera(av, source) as container:
            yield from _frames(av, container, f"camera {source}", most)
        return
    if not Path(source).is_file():
        raise FileNotFoundError(f"no video {source!r}; check the path")
    with open(source, "rb") as file:
        try:
            options = {"format_whitelist": CONTAINERS}
            container = av.open(file, io_open=_refuse, container_options=options)
        except (av.FFmpegError, OSError, ValueError) as error:
            raise ValueError(
                f"{source!r} is no video that can be read ({error}); known: {CONTAINERS}"
            ) from error
        with container:
            yield from _frames(av, container, repr(source), most)


def _refuse(url: str, flags: int, options: dict[str, str]) -> Any:
    raise PermissionError(f"a video may not open other files, such as {url!r:.80}")


def _camera(av: Any, number: int) -> Any:
    kind, place = CAMERAS.get(sys.platform, ("", ""))
    if not kind:
        raise ValueError(f"--source: cameras are read on Linux and macOS, not on {sys.platform}")
    try:
        return av.open(place.format(number), format=kind)
    except (av.FFmpegError, OSError, ValueError) as error:
        raise ValueError(
            f"--source {number}: the camera {place.format(number)!r} cannot be opened ({error}); "
            f"try another number, or a video file"
        ) from error


def _frames(av: Any, container: Any, name: str, most: int | None) -> Iterator[Frame]:
    if not container.streams.video:
        raise ValueError(f"{name} holds no pictures, only {len(container.streams)} other streams")
    stream = container.streams.video[0]
    stream.thread_type = "AUTO"
    rate, first = stream.average_rate or RATE, None
    try:
        for number, picture in enumerate(container.decode(stream), 1):
            if picture.width * picture.height > MOST:
                raise ValueError(f"{name}: frames of {picture.width} x {picture.height} pixels")
            photo = picture.to_image()
            if picture.rotation:
                photo = photo.rotate(picture.rotation, expand=True)
            now = picture.time if picture.time is not None else float((number - 1) / rate)
            first = now if first is None else first
            yield Frame(photo, number, now - first, Fraction(rate))
            if number == most:
                return
    except av.FFmpegError as error:
        if first is None:
            raise ValueError(f"{name}: no frame can be decoded ({error})") from error
        raise Broken(
            f"{name} is broken after {now:.1f} seconds ({error}); the rest is left out"
        ) from error


class Broken(ValueError):  # noqa: N818  (a finding about a video)
    """A video that ends in what cannot be decoded."""


class Writer:
    """An mp4 file of pictures of one size, as H.264 that every player knows.

    A file that is broken off is removed; an older one stays until then.
    """

    def __init__(self, path: Path, rate: Fraction):
        self.path, self.rate, self.av = path, rate, package()
        self.part = path.with_name(path.name + ".part")
        self.container: Any = None
        self.stream: Any = None
        self.last = -1

    def __enter__(self) -> "Writer":
        return self

    def write(self, photo: Image.Image, time: float) -> None:
        """Add a picture that is shown from this second on."""
        with files.writing(self.path):
            if self.container is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                files.remove(self.part)
                self.container = self.av.open(str(self.part), "w", format="mp4")
                self.stream = self.container.add_stream(
                    "libx264", rate=self.rate.limit_denominator(65535)
                )
                self.stream.width, self.stream.height = (side - side % 2 for side in photo.size)
                self.stream.pix_fmt = "yuv420p"
                self.stream.options = {"crf": "20", "preset": "veryfast"}
                self.stream.codec_context.time_base = Fraction(1, 90_000)
            size = self.stream.width, self.stream.height
            frame = self.av.VideoFrame.from_image(photo.crop((0, 0, *size)))
            frame.time_base = Fraction(1, 90_000)
            self.last = frame.pts = max(round(90_000 * time), self.last + 1)
            self.container.mux(self.stream.encode(frame))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self.container is None:
            return
        with files.writing(self.path):
            self.container.mux(self.stream.encode(None))
            self.container.close()
            self.part.replace(self.path)


def package() -> Any:
    """PyAV, asked for only here."""
    try:
        import av
    except ImportError as error:
        raise ImportError("videos are read by PyAV: pip install 'saccade[video]'") from error
    return av
