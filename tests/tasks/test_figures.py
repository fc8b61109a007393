"""Figures as people read them: declared by tasks, or plain numbers."""

import math

from saccade.tasks.figures import formatted, label_of, unit_of


def test_figures_have_digits_and_units():
    assert formatted("top1", 97.126) == "97.13%"
    assert formatted("top1", 97.126, unit=False) == "97.13"
    assert formatted("ssim", 0.98765) == "0.9877"
    assert formatted("loss", 0.12345) == "0.123"
    assert formatted("images", 1000.0) == "1000"
    assert formatted("ap", math.nan) == "nan"


def test_figures_have_names():
    assert (label_of("miou"), unit_of("miou")) == ("mIoU", "%")
    assert (label_of("never_declared"), unit_of("never_declared")) == ("never declared", "")
