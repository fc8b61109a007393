"""SASA's training (appendices A.2 and A.3)."""

from saccade.paper import Claim
from saccade.recipes.augment import Augment, Test
from saccade.recipes.classify import Classify
from saccade.recipes.detect import BoxAugment, BoxTest, RetinaNet
from saccade.recipes.recipe import Data, Loop, Model, Optim, Recipe, Schedule, change

R50 = Recipe(
    about="""ImageNet, appendix A.2.
    saccade train sasa --data IMAGENET; days on a large accelerator; 77.6% top-1 for ResNet-50 with
    attention everywhere. The best model is chosen by 4% of the training images; those of val/ are
    counted once, at the end. Momentum, weight decay and augmentation are not printed: the usual
    ones of a ResNet.""",
    model=Model(name="sasa_resnet50"),
    task=Classify(),
    data=Data(holdout=0.04, tune=True),
    augment=Augment(size=224, interpolation="bilinear"),
    test=Test(size=224, crop=0.875, interpolation="bilinear"),
    optim=Optim(name="nesterov", lr=1.6, lr_batch=4096, momentum=0.9, weight_decay=1e-4),
    schedule=Schedule(epochs=130, warmup=10),
    loop=Loop(batch=4096, ema=0.9999, ema_ramp=False, bn_decay=0.9999, precision="bf16"),
)

RETINANET50 = Recipe(
    about="""COCO, appendix A.3: RetinaNet, its convolutions replaced where one likes.
    saccade train sasa_retinanet50 --data COCO; days on a large accelerator; 36.2 to 36.8 AP,
    36.5 for the convolutional one. _heads attends in the heads, _all in the pyramid too, as the
    appendix has it word for word. model.start=RUN begins with an ImageNet backbone. Not printed:
    range of the jitter, momentum and weight decay; these are RetinaNet's usual ones.""",
    model=Model(name="sasa_resnet50"),
    task=RetinaNet(coarse="P5", norm=True, scales=2, init="retinanet"),
    augment=BoxAugment(short=(640,), long=640, scale=(0.8, 1.2), crop=640, flip=0.5),
    test=BoxTest(short=640, long=640),
    optim=Optim(name="sgd", lr=0.12, momentum=0.9, weight_decay=1e-4),
    schedule=Schedule(epochs=150, warmup=1),
    loop=Loop(batch=64, precision="bf16"),
)
_CONV = change(RETINANET50, model__name="sasa_resnet50_conv")
_CONVSTEM = change(RETINANET50, model__name="sasa_resnet50_convstem")

RETINANETS = {
    "sasa_retinanet50": RETINANET50,
    "sasa_retinanet50_conv": _CONV,
    "sasa_retinanet50_convstem": _CONVSTEM,
    "sasa_retinanet50_heads": change(RETINANET50, task__heads="attention"),
    "sasa_retinanet50_convstem_heads": change(_CONVSTEM, task__heads="attention"),
    "sasa_retinanet50_all": change(RETINANET50, task__fpn="attention", task__heads="attention"),
    "sasa_retinanet50_convstem_all": change(
        _CONVSTEM, task__fpn="attention", task__heads="attention"
    ),
}

RECIPES = {
    "sasa": R50,
    "sasa_resnet26": change(R50, model__name="sasa_resnet26"),
    "sasa_resnet38": change(R50, model__name="sasa_resnet38"),
    **RETINANETS,
}

_SETTING = (
    Claim("A.2", "held out", "4%"),
    Claim("A.2", "epochs", "130"),
    Claim("A.2", "optimiser", "Nesterov"),
    Claim("A.2", "learning rate", "1.6"),
    Claim("A.2", "warm-up epochs", "10"),
    Claim("A.2", "warm-up", "linear"),
    Claim("A.2", "schedule", "cosine"),
    Claim("A.2", "batch", "4096"),
    Claim("A.2", "BN decay", "0.9999"),
    Claim("A.2", "EMA", "0.9999"),
)

_BOXES = (
    Claim("A.3", "epochs", "150"),
    Claim("A.3", "batch", "64"),
    Claim("A.3", "learning rate", "0.12"),
    Claim("A.3", "rate that the warm-up begins at", "0"),
    Claim("A.3", "warm-up epochs", "1"),
    Claim("A.3", "warm-up", "linear"),
    Claim("A.3", "schedule", "cosine"),
    Claim("A.3", "augmentation", "resize, multiscale jitter, crop, flip"),
    Claim("A.3", "crop", "640"),
    Claim("A.3", "flip", "50%"),
)

# Of the detectors whose every 3 x 3 convolution above the backbone is gone.
_SURGERY = (
    Claim("A.3", "3x3 convolutions above the backbone", "0"),
    Claim("A.3", "attention's width", "256"),
    Claim("A.3", "attention's k", "7"),
    Claim("A.3", "attention's heads", "8"),
    Claim("A.3", "where a convolution was strided", "attention, 2x2 mean, stride 2"),
    Claim("A.3", "heads share weights across levels", "yes"),
    Claim("A.3", "std of the heads' W_V", "0.01"),
    Claim("A.3", "end of a head", "attention, 1x1 convolution"),
)

CLAIMS: dict[str, tuple[Claim, ...]] = {
    name: _BOXES if name in RETINANETS else _SETTING for name in RECIPES
}
CLAIMS |= {name: (*_BOXES, *_SURGERY) for name in RETINANETS if name.endswith("_all")}
