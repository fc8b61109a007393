from saccade.spelling import nearest


def test_the_nearest_and_the_first_of_equals():
    assert nearest("linglo_b9", ["linglo_b0", "linglo_b1", "qna_t"]) == "linglo_b0"
    assert nearest("layouts", ["widths", "layout"]) == "layout"
