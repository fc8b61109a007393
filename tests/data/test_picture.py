import io
import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from saccade.data import picture


def test_upright_rgb_in_zero_to_one(tmp_path):
    pixels = np.zeros((40, 60), np.uint8)
    pixels[:, 30:] = 255
    file = Image.fromarray(pixels)
    exif = file.getexif()
    exif[0x0112] = 6  # turned: the camera was held upright
    file.save(tmp_path / "a.jpg", exif=exif)
    photo = picture.read(tmp_path / "a.jpg")
    assert photo.shape == (60, 40, 3)
    assert photo[:20].mean() < 0.05
    assert photo[40:].mean() > 0.95
    assert picture.read(tmp_path / "a.jpg", 80).shape == (120, 80, 3)


def turned(path, side, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", side).save(path, exif=exif)
    return path


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("ending", ["jpg", "tif"])
def test_sizes_without_reading_pixels(tmp_path, orientation, ending):
    path = turned(tmp_path / f"a.{ending}", (60, 40), orientation)
    size = picture.size(path)
    assert size.stored == (60, 40)
    assert size.upright == picture.rgb(path, "a").size
    if ending == "jpg":
        path.write_bytes(path.read_bytes()[:-10])
        assert picture.size(path) == size, "the head is enough"
    path.write_bytes(b"no picture")
    assert picture.size(path) is None
    assert picture.size(tmp_path / "gone.jpg") is None


@pytest.mark.parametrize("ending", ["png", "tif"])
def test_what_was_drawn_over_decides_whether_to_turn(tmp_path, ending):
    path = turned(tmp_path / f"a.{ending}", (60, 40), 6)
    assert picture.rgb(path, "a", (60, 40)).size == (60, 40)
    assert picture.rgb(path, "a", (40, 60)).size == (40, 60)
    assert picture.rgb(path, "a", (33, 22)).size == (40, 60), "upright, as ever"
    upright = turned(tmp_path / "b.png", (60, 40), 1)
    assert picture.rgb(upright, "b", (60, 40)).size == (60, 40)


@pytest.mark.parametrize("orientation", [5, 6, 7, 8])
@pytest.mark.parametrize("compression", ["raw", "tiff_lzw"])
def test_a_tiff_on_its_side(tmp_path, orientation, compression):
    """Pillow turns it as it loads; by a path it would map the lines of a plain one wrongly."""
    pixels = np.random.default_rng(0).integers(0, 255, (17, 23)).astype(np.uint8)
    photo, exif = Image.fromarray(pixels), Image.Exif()
    exif[0x0112] = orientation
    photo.save(tmp_path / "a.tif", exif=exif, compression=compression)
    photo.save(tmp_path / "a.png", exif=exif)
    for drawn in (None, (23, 17), (17, 23)):
        one, other = (picture.rgb(tmp_path / f"a.{e}", "a", drawn) for e in ("tif", "png"))
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_normalised_as_the_card_says():
    x = picture.to_input(
        np.full((4, 5, 3), 0.5, np.float32), {"mean": (0.5, 0.4, 0.3), "std": (0.1,) * 3}
    )
    torch.testing.assert_close(x[0, :, 0, 0], torch.tensor([0.0, 1.0, 2.0]))


@pytest.mark.parametrize("content", [b"", b"not a picture", b"\x89PNG\r\n\x1a\n" + b"\0" * 30])
def test_what_is_no_picture_is_refused(tmp_path, content):
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(ValueError, match="is no readable picture"):
        picture.read(tmp_path / "a.png")


def test_a_truncated_picture_is_refused(tmp_path):
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (99, 99, 3), np.uint8)).save(
        tmp_path / "a.png"
    )
    whole = (tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="is no readable picture"):
        picture.read(tmp_path / "a.png")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_giant_picture_is_refused(tmp_path):
    Image.new("1", (12000, 12000)).save(tmp_path / "a.png")
    with pytest.raises(ValueError, match="12000 x 12000 pixels"):
        picture.read(tmp_path / "a.png")


def test_a_missing_file():
    with pytest.raises(FileNotFoundError, match=r"no picture 'gone.jpg'"):
        picture.read("gone.jpg")


# -- any picture in RGB ---------------------------------------------------------------------

GRADIENT = np.linspace(0, 255, 32).astype(np.uint8)[None].repeat(16, 0)  # dark to light


def saved(tmp_path, image, ending, **options):
    image.save(tmp_path / f"a.{ending}", **options)
    return np.asarray(picture.rgb(tmp_path / f"a.{ending}", "a")).astype(int)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "CMYK", "YCbCr", "I;16"])
def test_modes(tmp_path, mode):
    grey = Image.fromarray(GRADIENT)
    if mode == "I;16":
        image = Image.fromarray(GRADIENT.astype(np.uint16) * 257)
    elif mode == "1":
        image = grey.point(lambda v: 255 * (v > 127), mode="1")
    else:
        image = grey.quantize(64) if mode == "P" else grey.convert("RGB").convert(mode)
    ending = "jpg" if mode in ("CMYK", "YCbCr") else "png"
    pixels = saved(tmp_path, image, ending)
    assert pixels.shape == (16, 32, 3)
    expected = 255 * (GRADIENT > 127) if mode == "1" else GRADIENT
    assert np.abs(pixels - expected[..., None]).max() <= 12


def test_sixteen_bits_in_other_files(tmp_path):
    deep = GRADIENT.astype(np.uint16) * 257
    for ending in ("tif", "pgm"):
        pixels = saved(tmp_path, Image.fromarray(deep), ending)
        assert np.abs(pixels - GRADIENT[..., None]).max() <= 1


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_white(tmp_path, mode):
    image = Image.new("RGBA", (8, 4), (200, 200, 200, 255))
    image.paste((0, 0, 0, 0), (0, 0, 4, 4))
    image = image.quantize(8) if mode == "P" else image.convert(mode)
    pixels = saved(tmp_path, image, "png")
    assert (pixels[:, :4] == 255).all()
    assert np.abs(pixels[:, 4:] - 200).max() <= 4


@pytest.mark.parametrize("turn", range(1, 9))
def test_all_ways_to_hold_a_camera(tmp_path, turn):
    pixels = np.zeros((8, 16, 3), np.uint8)
    pixels[:4, :8] = 255, 0, 0
    ways = {
        2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM, 5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }  # fmt: skip
    file = Image.fromarray(pixels)
    if turn in ways:
        file = file.transpose(ways[turn])
    exif = file.getexif()
    exif[0x0112] = turn
    path = saved(tmp_path, file, "png", exif=exif)
    np.testing.assert_array_equal(path, pixels)


def test_a_moving_picture_gives_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (6, 5), colour) for colour in ("red", "blue")]
    path = saved(tmp_path, frames[0], "gif", save_all=True, append_images=frames[1:])
    assert (path == (255, 0, 0)).all()


def test_real_numbers_are_refused(tmp_path):
    Image.fromarray(np.ones((4, 4), np.float32)).save(tmp_path / "a.tif")
    with pytest.raises(picture.Unreadable, match="real numbers of unknown range"):
        picture.rgb(tmp_path / "a.tif", "a")


@pytest.mark.filterwarnings("error")
def test_a_bomb_is_refused_in_silence(tmp_path):
    for side in ((12000, 12000), (15000, 15000)):
        Image.new("1", side).save(tmp_path / "a.png")
        with pytest.raises(picture.Unreadable, match="pixels"):
            picture.rgb(tmp_path / "a.png", "a")


@pytest.mark.parametrize("ending", ["jpg", "png", "gif", "tif", "webp", "bmp"])
@pytest.mark.filterwarnings("error")
def test_whatever_is_broken_is_unreadable_at_most(tmp_path, ending):
    """Bytes overwritten and cut off at random: a picture or `Unreadable`, nothing else."""
    chance = np.random.default_rng(0)
    Image.fromarray(chance.integers(0, 255, (20, 30, 3), np.uint8)).save(tmp_path / f"a.{ending}")
    whole = np.frombuffer((tmp_path / f"a.{ending}").read_bytes(), np.uint8)
    refused = 0
    for _ in range(150):
        bad = whole.copy()
        where = chance.integers(0, min(len(bad), chance.choice([40, 200, len(bad)])), 6)
        bad[where] = chance.integers(0, 256, 6)
        content = bad[: chance.integers(0, 2 * len(bad))].tobytes()
        try:
            assert picture.rgb(io.BytesIO(content), "a").mode == "RGB"
        except picture.Unreadable:
            refused += 1
    assert refused > 20


def test_the_reason_survives_the_way_out_of_a_worker():
    there = pickle.loads(pickle.dumps(picture.Unreadable("a.jpg", "cut short")))
    assert (there.name, there.reason) == ("a.jpg", "cut short")
    assert str(there) == "'a.jpg' is no readable picture (cut short)"
