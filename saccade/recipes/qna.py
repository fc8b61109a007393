"""QnA's training (supplement, section 2.1, the schedules of Tables 2 and 3, and DETR)."""

from saccade.paper import Claim
from saccade.recipes.augment import Augment, Test
from saccade.recipes.autoencode import AutoEncode
from saccade.recipes.classify import Classify
from saccade.recipes.detect import BoxAugment, BoxTest, Detr
from saccade.recipes.recipe import Loop, Model, Optim, Recipe, Schedule, change

T = Recipe(
    about="""ImageNet-1K, supplement section 2.1: DeiT without EMA and repeated augmentation.
    saccade train qna_t --data IMAGENET; about three days on eight GPUs; 81.7 / 83.2 / 83.7% top-1
    for T / S / B. The paper's warm-up "varies according to model size" and is not printed, nor is
    the rate of stochastic depth: 5, 5, 20 epochs and .05, .2, .5 are from the authors' code.""",
    model=Model(name="qna_t", drop_path=0.05),
    task=Classify(smoothing=0.1),
    augment=Augment(
        size=224,
        scale=(0.08, 1.0),
        interpolation="bicubic",
        flip=0.5,
        rand="rand-m9-n2-mstd0.5",
        jitter=0.3,
        jitter_share=0.8,
        grey=0.2,
        erase=0.25,
        mixup=0.8,
        cutmix=1.0,
        switch=0.5,
    ),
    test=Test(size=224, crop=0.875, interpolation="bicubic"),
    optim=Optim(name="adamw", lr=5e-4, lr_batch=256, weight_decay=0.05),
    schedule=Schedule(epochs=300, warmup=5),
    loop=Loop(batch=1024, precision="bf16"),
)

_PLAIN = Augment(size=224, scale=(0.08, 1.0), flip=0.5)

T_DETR = Recipe(
    about="""COCO: DETR for 75 epochs with QnA as its backbone.
    pip install 'saccade[detection]'; saccade train qna_t_detr --data COCO --set model.start=RUN;
    days on eight GPUs. The paper starts from ImageNet weights: give such a run or model as
    model.start, which is empty here. Not printed and those of the implementation that it names:
    clipping, weight decay, dropout of attention alone. docs/detection.md lists what still differs
    from that one.""",
    model=Model(name="qna_t"),
    task=Detr(dropout=0.0, attention_dropout=0.1, carry="raw"),
    augment=BoxAugment(
        part=0.5,
        part_short=(400, 500, 600),
        part_sides=(384, 600),
        short=tuple(range(480, 801, 32)),
        long=1333,
        flip=0.5,
    ),
    test=BoxTest(short=800, long=1333),
    optim=Optim(name="adamw", lr=1e-4, backbone=0.1, weight_decay=1e-4, clip=0.1),
    schedule=Schedule(epochs=75, shape="step", steps=(50.0,), factor=0.1),
    loop=Loop(batch=32, precision="bf16"),
)

RECIPES = {
    "qna_t": T,
    "qna_s": change(T, model=Model(name="qna_s", drop_path=0.2)),
    "qna_b": change(T, model=Model(name="qna_b", drop_path=0.5), schedule__warmup=20),
    "qna_heads": change(
        T,
        about="""Table 2 of the supplement: how many heads, without augmentation or regularisation.
    saccade train qna_heads --data IMAGENET --set model.name=VARIANT; 68.33 to 73.02% top-1. Crops
    and flips alone ("AugReg: None"): no mixing, no smoothing, no stochastic depth.""",
        model=Model(name="qna_table2_2222_h8_16_32_64", drop_path=0.0),
        augment=_PLAIN,
        task=Classify(),
        schedule__epochs=90,
    ),
    "qna_mixed_heads": change(
        T, model=Model(name="qna_table3_q8_16_32_64_s4_8_16_32"), schedule__epochs=90
    ),
    "qna_mixed_heads_long": change(T, model=Model(name="qna_table3_q8_16_32_64_s4_8_16_32")),
    "qna_t_detr": T_DETR,
    "qna_s_detr": change(T_DETR, model__name="qna_s"),
    "qna_b_detr": change(T_DETR, model__name="qna_b"),
}

_SETTING = (
    Claim("S2.1", "epochs", "300"),
    Claim("S2.1", "optimiser", "AdamW"),
    Claim("S2.1", "learning rate / 256 images", "0.0005"),
    Claim("S2.1", "weight decay", "0.05"),
    Claim("S2.1", "EMA", "none"),
    Claim("S2.1", "augmentation", "crop, flip, RandAugment, jitter, grey, erasing, mixup, cutmix"),
    Claim("S2.1", "label smoothing", "yes"),
    Claim("S2.1", "stochastic depth", "yes"),
    Claim("S2.1", "rate of stochastic depth", "increasing"),
    Claim("code", "positions and scales undecayed", "yes"),
)

_BOXES = (
    Claim("S2.2", "epochs", "75"),
    Claim("S2.2", "batch", "32"),
    Claim("S2.2", "learning rate", "0.0001"),
    Claim("S2.2", "backbone rate", "0.00001"),
    Claim("S2.2", "steps", "x0.1 after 50"),
    Claim("S2.2", "short side", "480 to 800"),
    Claim("S2.2", "long side", "1333"),
    Claim("S2.2", "augmentation", "resize and crop (50%), resize, multiscale jitter, flip"),
    Claim("S2.2", "crop from short side", "400 to 600"),
    Claim("S2.2", "sides of the crop", "384 to 600"),
)

_DEIT = Claim(
    "Table 3", "augmentation", "crop, flip, RandAugment, jitter, grey, erasing, mixup, cutmix"
)

CLAIMS: dict[str, tuple[Claim, ...]] = {
    **{
        name: (*_SETTING, Claim("code", "warm-up epochs", warmup), Claim("code", "drop path", drop))
        for name, warmup, drop in (
            ("qna_t", "5", "0.05"),
            ("qna_s", "5", "0.2"),
            ("qna_b", "20", "0.5"),
        )
    },
    "qna_heads": (
        Claim("Table 2", "epochs", "90"),
        Claim("Table 2", "augmentation", "crop, flip"),
        Claim("Table 2", "label smoothing", "no"),
        Claim("Table 2", "stochastic depth", "no"),
    ),
    "qna_mixed_heads": (Claim("Table 3", "epochs", "90"), _DEIT),
    "qna_mixed_heads_long": (Claim("Table 3", "epochs", "300"), _DEIT),
    **dict.fromkeys(("qna_t_detr", "qna_s_detr", "qna_b_detr"), _BOXES),
}

# -- the auto-encoder, supplement section 7 ---------------------------------------------------

AUTOENCODE = Recipe(
    about="""The auto-encoder of the supplement, section 7, with QnA down and up.
    saccade train autoencode_qna --data FOLDER, any pictures; in the paper, the faces of CelebA.
    Its baselines: --set task.encoder=max task.decoder=bilinear, or task.decoder=transpose. The
    paper chose rates by the test loss and prints none; widths, batch and rate are ours.""",
    model=Model(name="autoencoder"),
    task=AutoEncode(encoder="qna", decoder="qna"),
    augment=Augment(size=256, scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.5),
    test=Test(size=256, crop=1.0),
    optim=Optim(name="adam", lr=1e-3),
    schedule=Schedule(epochs=10),
    loop=Loop(batch=16),
)
RECIPES |= {"autoencode_qna": AUTOENCODE}
CLAIMS |= {
    "autoencode_qna": (
        Claim("S7", "epochs", "10"),
        Claim("S7", "optimiser", "Adam"),
        Claim("S7", "loss", "l1"),
        Claim("S7", "image side", "256"),
        Claim("S7", "norm before QnA", "LayerNorm"),
        Claim("S7", "layers down", "5 of 3x3 QnA"),
        Claim("S7", "layers up", "5 of 3x3 QnA"),
        Claim("S7", "queries of a layer down", "1"),
    )
}
