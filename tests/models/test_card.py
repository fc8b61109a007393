from saccade.models.card import as_trained, untrained_head

FRESH = {"input_size": (3, 224, 224), "pool_size": (7, 7), "crop_pct": 0.875, "num_classes": 1000}


def test_test_settings_become_timms():
    test = {"size": 96, "crop": 1.0, "interpolation": "bilinear"}
    card = as_trained(FRESH, {"test": test, "classes": ["a", "b"]})
    assert card["input_size"] == (3, 96, 96)
    assert card["pool_size"] == (3, 3)
    assert (card["crop_pct"], card["interpolation"]) == (1.0, "bilinear")
    assert (card["num_classes"], card["label_names"]) == (2, ["a", "b"])
    assert "label_names" not in untrained_head(card, 5)


def test_what_makes_no_sense_changes_nothing():
    test = {"size": "large", "crop": float("nan"), "interpolation": "../x"}
    assert as_trained(FRESH, {"test": test}) == FRESH
    assert as_trained(FRESH, {}) == FRESH
