import pytest
from PIL import Image

import saccade
from saccade.face import sight


def test_a_classifier_sees_the_middle_and_others_all():
    photo = Image.new("RGB", (300, 200))
    trained = sight.sight_of(saccade.load("linglo_nano"), photo, "photo")
    assert trained.x.shape == (1, 3, 96, 96)
    assert trained.part == (0.0, 50.0, 200.0, 200.0)
    assert trained.within((0, 50)) == (0, 0)
    assert trained.within((199, 249)) == (95, 95)
    with pytest.raises(ValueError, match="sees columns 50 to 249"):
        trained.within((0, 20))
    fresh = sight.sight_of(saccade.build("linglo_nano"), photo, "photo")
    assert fresh.x.shape == (1, 3, 64, 96)
    assert fresh.within((199, 299)) == (63, 95)
    with pytest.raises(ValueError, match="32 pixels or more"):
        sight.sight_of(saccade.build("linglo_nano"), photo, "photo", size=8)
