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
