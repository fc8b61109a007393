"""What the studies declare can be built, and speaks to cells that the papers print."""

import pytest
import torch

from saccade.engine import make
from saccade.models import zoo
from saccade.study.book import STUDIES, find
from saccade.study.result import printed

SETTINGS = [(name, key) for name, study in STUDIES.items() for key in study.settings()]


@pytest.mark.parametrize(("name", "key"), SETTINGS)
def test_every_setting_can_be_built_and_takes_its_images(name, key):
    recipe = STUDIES[name].settings()[key]
    with torch.device("meta"):
        net = make.model(recipe, 10)
        side = recipe.augment.size
        assert net(torch.zeros(2, 3, side, side)).shape[0] == 2
    assert "/" not in key


@pytest.mark.parametrize("name", STUDIES)
def test_rows_differ_and_their_cells_are_printed(name):
    study = STUDIES[name]
    settings = study.settings()
    assert len({str(recipe) for recipe in settings.values()}) == len(settings)
    for grid in study.grids:
        assert len({row.key for row in grid.rows}) == len(grid.rows), grid.where
        for row in grid.rows:
            for variant, what in row.cells:
                assert any(claim.what == what for claim in zoo.claims(variant)), (variant, what)
            assert bool(row.cells) == (printed(grid, row) is not None)


def test_auto_encoders_are_of_like_size():
    study = STUDIES["qna_autoencoders"]
    with torch.device("meta"):
        sizes = [
            sum(p.numel() for p in make.model(recipe, 0).parameters())
            for recipe in study.settings().values()
        ]
    assert 0.7e6 < min(sizes) < max(sizes) < 1.3e6


def test_an_unknown_study_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'linglo'"):
        find("lingl")
