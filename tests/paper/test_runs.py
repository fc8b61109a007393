import pytest

from saccade.models import detectors, zoo
from saccade.paper import Claim, count
from saccade.paper.claims import PROPERTIES
from saccade.paper.runs import best_run, finished, recipes
from saccade.tasks.detect.task import Detect
from saccade.tasks.segment.task import SegmentTask
from tests.report.run_folders import written

TOP1 = Claim("Table 2", "top-1", "72.5%")
SHORT = Claim("Table 6", "top-1 at 100 epochs", "68.5%")
NAMES = [f"n{i}" for i in range(1000)]


def done(folder, recipe="linglo_b0", **more):
    more = {"names": NAMES, "data": "imagenet", "per_epoch": 1, **more}
    return written(folder, recipe, **more)


def test_a_full_run_answers(tmp_path):
    done(tmp_path / "a", best=72.4, sets=["loop.precision=fp32", "loop.part=64"], seed=3)
    done(tmp_path / "b", best=72.0)
    answer = best_run("linglo_b0", TOP1, finished(tmp_path))
    assert answer.full
    assert answer.mark == "full"
    assert answer.value == pytest.approx(72.4)
    assert "'imagenet'" in answer.note
    assert "1,000 classes" in answer.note
    assert best_run("linglo_b1", TOP1, finished(tmp_path)) is None


def test_other_data_is_never_taken_for_the_papers(tmp_path):
    done(tmp_path / "pets", best=94.0, names=NAMES[:37], data="pets37")
    answer = best_run("linglo_b0", TOP1, finished(tmp_path))
    assert not answer.full
    assert answer.mark == "other data"
    assert "37 classes in 'pets37'" in answer.note
    done(tmp_path / "imagenet", best=70.0)
    assert best_run("linglo_b0", TOP1, finished(tmp_path)).value == pytest.approx(70.0)


@pytest.mark.parametrize(
    "change", ["schedule.epochs=9", "loop.batch=256", "model.start=x", "model.options.heads=1"]
)
def test_a_changed_setting_is_named(tmp_path, change):
    done(tmp_path / "a", sets=[change])
    answer = best_run("linglo_b0", TOP1, finished(tmp_path))
    assert answer.mark == "changed"
    assert f"changed: {change}" in answer.note


def test_what_is_not_finished_or_by_another_recipe_is_no_answer(tmp_path):
    done(tmp_path / "a", epochs=299)
    done(tmp_path / "b", "scratch", sets=["model.name=linglo_b0"])
    done(tmp_path / "c", figures=lambda _: {"top1": float("nan")})
    (tmp_path / "d").mkdir()
    (tmp_path / "d/recipe.json").write_text("{damaged")
    assert len(finished(tmp_path)) == 2
    assert best_run("linglo_b0", TOP1, finished(tmp_path)) is None
    assert finished(tmp_path / "gone") == []


def test_an_ablation_is_answered_by_its_own_schedule(tmp_path):
    done(tmp_path / "long", "linglo_b0", sets=["model.name=linglo_b0_cpe"], best=99.0)
    done(tmp_path / "short", "linglo_ablation", sets=["model.name=linglo_b0_cpe"], best=68.0)
    answer = best_run("linglo_b0_cpe", SHORT, finished(tmp_path))
    assert answer.full
    assert answer.value == pytest.approx(68.0)


@pytest.mark.parametrize(
    ("name", "figure", "classes"),
    [("linglo_b0_retinanet", Detect.best, 80), ("linglo_b1_semantic_fpn", SegmentTask.best, 150),
     ("sasa_retinanet50_heads", "AP", 80)],
)  # fmt: skip
def test_boxes_and_masks_answer_too(tmp_path, name, figure, classes):
    (claim,) = [c for c in detectors.CLAIMS[name] if c.what.lower() == figure.lower()]
    settings = {"data": "theirs", "figures": lambda _: {figure: 30.0, "images": 5}}
    settings["sets"] = ["schedule.epochs=32"] if figure == "miou" else []
    done(tmp_path / "few", name, **{**settings, "names": NAMES[:2]})
    answer = best_run(name, claim, finished(tmp_path))
    assert (answer.mark, answer.value) == ("other data", 30.0)
    done(tmp_path / "whole", name, **{**settings, "names": NAMES[:classes]})
    answer = best_run(name, claim, finished(tmp_path))
    assert answer.mark == "full"
    done(tmp_path / "else", name, **{**settings, "sets": ["model.name=linglo_b2"]})
    assert best_run(name, claim, finished(tmp_path / "else")).mark != "full"


def test_each_claim_has_its_papers_recipe():
    def names(variant, where, what):
        return list(recipes(variant, Claim(where, what, "1%")))

    assert names("qna_s", "main text", "top-1") == ["qna_s"]
    assert names("qna_table2_2222_h8_16_32_64", "Table 2", "top-1 at 90 epochs") == ["qna_heads"]
    assert "sasa" in names("sasa_resnet50", "Table 3, none", "val acc")
    for variant in zoo.names():
        for claim in zoo.claims(variant):
            if claim.what not in (*count.MEASURES, *PROPERTIES):
                assert recipes(variant, claim), (variant, claim)
    for name, claims in detectors.CLAIMS.items():
        for claim in claims:
            if claim.what in ("AP", "mIoU"):
                assert recipes(name, claim), (name, claim)
