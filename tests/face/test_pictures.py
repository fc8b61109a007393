from PIL import Image

from saccade.face.pictures import album


def test_pictures_keep_their_names_and_lie_upright(tmp_path):
    path = tmp_path / "a.png"
    Image.new("RGB", (4, 6)).save(path)
    turned = Image.new("RGB", (4, 6))
    turned.getexif()[0x0112] = 6
    pictures, several = album([path, turned])
    assert several
    assert [pictures.name(i) for i in range(2)] == [str(path), "picture 2"]
    assert [pictures.photo(i).size for i in range(2)] == [(4, 6), (6, 4)]
    assert not pictures.in_memory
    assert album(str(tmp_path))[1]
    assert album(turned)[0].in_memory
