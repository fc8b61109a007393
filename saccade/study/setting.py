"""The recipe that all studies of classifiers share."""

from saccade.recipes.augment import Augment, Test
from saccade.recipes.classify import Classify
from saccade.recipes.recipe import Data, Loop, Model, Optim, Recipe, Schedule


def CIFAR(model: str) -> Recipe:  # noqa: N802  (a recipe, as those in capitals elsewhere)
    """A fifth of CIFAR-10's training pictures, 8 times, for one of the small models."""
    return Recipe(
        about="""A study's row: 10,000 training pictures of CIFAR-10, all 10,000 test pictures.
    saccade study NAME; two to four minutes of one core a run.""",
        model=Model(name=model, drop_path=0.0),
        task=Classify(smoothing=0.1),
        data=Data(share=0.2, workers=0),
        augment=Augment(size=32, pad=4, interpolation="bilinear"),
        test=Test(size=32, crop=1.0, interpolation="bilinear"),
        optim=Optim(name="muon", lr=0.02, momentum=0.95, beta=0.99, weight_decay=0.05),
        schedule=Schedule(epochs=8, warmup=1, shape="poly"),
        loop=Loop(batch=64, evaluate_every=2),
    )
