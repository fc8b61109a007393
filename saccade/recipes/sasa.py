"""SASA's training (appendix A.2)."""

from saccade.paper import Claim
from saccade.recipes.recipe import (
    Augment,
    Classify,
    Data,
    Loop,
    Model,
    Optim,
    Recipe,
    Schedule,
    Test,
    change,
)

R50 = Recipe(
    about="""ImageNet, appendix A.2.
    saccade train sasa --data IMAGENET; days on a large accelerator; 77.6% top-1 for ResNet-50 with
    attention everywhere. Momentum, weight decay and augmentation are not printed: the usual ones of
    a ResNet.""",
    model=Model(name="sasa_resnet50"),
    task=Classify(),
    data=Data(holdout=0.04),
    augment=Augment(size=224, interpolation="bilinear"),
    test=Test(size=224, crop=0.875, interpolation="bilinear"),
    optim=Optim(name="nesterov", lr=1.6, lr_batch=4096, momentum=0.9, weight_decay=1e-4),
    schedule=Schedule(epochs=130, warmup=10),
    loop=Loop(batch=4096, ema=0.9999, bn_decay=0.9999, precision="bf16"),
)

RECIPES = {
    "sasa": R50,
    "sasa_resnet26": change(R50, model__name="sasa_resnet26"),
    "sasa_resnet38": change(R50, model__name="sasa_resnet38"),
}

_SETTING = (
    Claim("A.2", "held out", "4%"),
    Claim("A.2", "epochs", "130"),
    Claim("A.2", "optimiser", "Nesterov"),
    Claim("A.2", "learning rate", "1.6"),
    Claim("A.2", "warm-up epochs", "10"),
    Claim("A.2", "schedule", "cosine"),
    Claim("A.2", "batch", "4096"),
    Claim("A.2", "BN decay", "0.9999"),
    Claim("A.2", "EMA", "0.9999"),
)

CLAIMS = dict.fromkeys(RECIPES, _SETTING)
