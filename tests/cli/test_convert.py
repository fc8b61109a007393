from tests.data.conftest import photo


def test_convert(run, typed, tmp_path):
    for n in range(3):
        photo(tmp_path / f"yolo/images/train/{n}.png", n)
    (tmp_path / "yolo/labels/train").mkdir(parents=True)
    (tmp_path / "yolo/labels/train/0.txt").write_text("0 0.5 0.5 1 1\n1 0.5 0.5 1\n")
    (tmp_path / "names.txt").write_text("dog\ncat\n")
    out = tmp_path / "out"
    code, text, beside = typed(
        "convert", str(tmp_path / "yolo"), str(out), "--classes", str(tmp_path / "names.txt")
    )
    assert code == 0, beside
    assert text.splitlines() == [
        "train: 3 images with 1 boxes, 2 images without any",
        "2 classes: dog, cat",
        f"read as YOLO, written to {out}",
    ]
    assert beside.splitlines() == [
        "YOLO: 1 lines that are not five numbers, class cx cy w h (left out), such as 0.txt, "
        "line 2 (4 numbers)",
        "YOLO: 2 pictures without a label file (kept, without boxes), such as 1.png",
    ]
    assert (out / "annotations/instances_train.json").is_file()
    code, text = run("convert", str(tmp_path / "yolo"), str(out))
    assert code == 1
    assert "is there and not empty; give another folder" in text
    assert "Traceback" not in text
