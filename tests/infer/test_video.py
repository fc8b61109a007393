"""Videos in and out, and what a stranger's file may not do."""

import contextlib
from fractions import Fraction
from itertools import islice

import numpy as np
import pytest
from PIL import Image

from saccade.infer import video
from saccade.infer.video import Writer, frames

pytest.importorskip("av")


def clip(path, count=12, side=(50, 33), rate=Fraction(10)):
    """A white square that moves to the right on grey."""
    with Writer(path, rate) as out:
        for n in range(count):
            pixels = np.full((side[1], side[0], 3), 90, np.uint8)
            pixels[8:24, 2 * n : 2 * n + 16] = 255
            out.write(Image.fromarray(pixels), n / float(rate))
    return path


def test_there_and_back(tmp_path):
    path = clip(tmp_path / "a.mp4")
    read = list(frames(str(path)))
    assert [frame.number for frame in read] == list(range(1, 13))
    assert [frame.time for frame in read] == pytest.approx([n / 10 for n in range(12)], abs=1e-3)
    assert read[0].photo.size == (50, 32), "even sides, as players want them"
    for n in (0, 6, 11):
        pixels = np.asarray(read[n].photo, int)[..., 0]
        assert abs(pixels[12:20, 2 * n + 4 : 2 * n + 12] - 255).mean() < 12
        assert abs(pixels[27:, :].mean() - 90) < 12
    assert [frame.number for frame in frames(str(path), most=3)] == [1, 2, 3]
    assert not list(tmp_path.glob("*.part"))


def test_a_video_that_ends_early(tmp_path):
    import av

    path = tmp_path / "a.mkv"  # whose frames do not need an index at the end
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for n in range(40):
            noise = np.random.default_rng(n).integers(0, 255, (48, 64, 3)).astype(np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(noise)))
        container.mux(stream.encode(None))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    numbers = []
    with contextlib.suppress(video.Broken):  # or it ends where a frame ends
        numbers.extend(frame.number for frame in frames(str(path)))
    read = list(islice(frames(str(path)), 6))
    assert len(read) == 6
    assert not numbers or len(numbers) < 40


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("list.mp4", "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{}\n#EXT-X-ENDLIST\n"),
        ("concat.mp4", "ffconcat version 1.0\nfile '{}'\n"),
        ("text.mp4", "no video at all {}\n"),
    ],
)
def test_files_that_name_others_are_not_followed(tmp_path, name, content):
    other = clip(tmp_path / "other.ts.mp4")
    (tmp_path / name).write_text(content.format(other))
    with pytest.raises(ValueError, match="is no video that can be read"):
        list(frames(str(tmp_path / name)))


def test_no_video(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no video 'gone\.mp4'"):
        next(frames("gone.mp4"))
    with pytest.raises(ValueError, match=r"--source 99: the camera"):
        next(frames(99))


def test_a_camera_is_opened_by_its_number(tmp_path, monkeypatch):
    """No camera is here: a file stands in for the device."""
    av = video.package()
    path, real, calls = clip(tmp_path / "a.mp4"), av.open, []

    def opened(name, *args, **options):
        calls.append((name, options))
        return real(str(path))

    monkeypatch.setattr(video.sys, "platform", "linux")
    monkeypatch.setattr(av, "open", opened)
    assert len(list(frames(1, most=4))) == 4
    assert calls == [("/dev/video1", {"format": "v4l2"})]


def test_an_interrupted_video_is_whole_as_far_as_it_goes(tmp_path):
    path = tmp_path / "a.mp4"

    def interrupted():
        with Writer(path, Fraction(10)) as out:
            for n in range(5):
                out.write(Image.new("RGB", (64, 48), (50 * n, 0, 0)), n / 10)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(list(frames(str(path)))) == 5
