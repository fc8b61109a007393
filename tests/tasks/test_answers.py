import numpy as np
from PIL import Image

from saccade.tasks.answers import BoxAnswer, ClassAnswer, ImageAnswer, MaskAnswer, summed_up

PHOTO = Image.new("RGB", (40, 30), "grey")


def test_classes():
    answer = ClassAnswer(photo=PHOTO, name="a.png", labels=("<cat>", "dog"), scores=(0.75, 0.25))
    assert (answer.label, answer.score) == ("<cat>", 0.75)
    assert answer.plain() == {
        "guesses": [{"label": "<cat>", "share": 0.75}, {"label": "dog", "share": 0.25}]
    }
    assert "&lt;cat&gt;" in answer._repr_html_()
    assert summed_up([answer]) == "a.png: <cat> 75.0%, dog 25.0%"


def test_boxes_are_drawn():
    answer = BoxAnswer(
        photo=PHOTO, boxes=np.array([[5.0, 5, 20, 25]]), numbers=np.array([1]),
        scores=np.array([0.9]), classes=("disc", "slab"),
    )  # fmt: skip
    assert answer.labels == ["slab"]
    assert str(answer) == "slab 90%"
    assert not np.array_equal(np.asarray(answer.draw()), np.asarray(PHOTO))


def test_of_very_many_boxes_the_first_are_named():
    answer = BoxAnswer(
        photo=PHOTO, boxes=np.zeros((100, 4)), numbers=np.zeros(100, np.int64),
        scores=np.linspace(0.9, 0.1, 100), classes=("disc",),
    )  # fmt: skip
    assert str(answer).count("disc") == 10
    assert str(answer).endswith(" and 90 more")
    assert len(answer.labels) == 100


def test_masks_have_shares():
    mask = np.zeros((30, 40), np.uint8)
    mask[:, :10] = 2
    answer = MaskAnswer(photo=PHOTO, mask=mask, classes=("sky", "sea", "boat"))
    assert answer.shares == {"sky": 0.75, "boat": 0.25}
    assert answer.draw().width > 40


def test_pictures_are_their_own_drawing():
    answer = ImageAnswer(photo=PHOTO, picture=PHOTO.resize((80, 60)))
    assert answer.draw().size == (80, 60)
    assert str(answer) == "40 x 30 to 80 x 60 pixels"
