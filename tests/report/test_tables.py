from saccade.report.tables import Tables


def test_of_nothing_there_is_nothing():
    empty = Tables({})
    assert empty.confusion == ([], [])
    assert empty.examples == empty.precision == empty.precision_of_classes == {}
    assert empty.per_class == empty.pictures == []
    assert empty.about_confusion == ""


def test_what_is_not_as_saccade_writes_it_is_left_out():
    tables = Tables(
        {
            "per_class": [{"class": "a"}, "b", None],
            "examples": {"x": [{"jpeg": '"><script>'}, {"jpeg": "QUJD", "caption": "c"}, 3]},
            "about_confusion": "a" * 1000,
        }
    )
    assert tables.per_class == [{"class": "a"}]
    assert tables.examples == {"x": [("c", "QUJD")]}
    assert len(tables.about_confusion) == 400
    assert Tables({"examples": ["x"]}).examples == {}
