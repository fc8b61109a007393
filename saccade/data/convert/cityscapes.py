"""Read Cityscapes as it is unpacked.

    leftImg8bit/SPLIT/CITY/NAME_leftImg8bit.png
    gtFine/SPLIT/CITY/NAME_gtFine_labelIds.png          or gtCoarse; or _labelTrainIds.png

The 19 classes that are evaluated, with the ids that the masks have: road is 7 there and class 0 of
a model. A model's masks then have these ids too, as Cityscapes' server wants them. The labels of
`test` are blank, so it is left out.
"""

from pathlib import Path

from saccade.data.convert.layout import SPLITS
from saccade.data.convert.regions import IGNORED, LOSSLESS, Masked, Regions
from saccade.data.folder import Inside, contents
from saccade.data.picture import PHOTOS

CLASSES = {
    7: "road", 8: "sidewalk", 11: "building", 12: "wall", 13: "fence", 17: "pole",
    19: "traffic light", 20: "traffic sign", 21: "vegetation", 22: "terrain", 23: "sky",
    24: "person", 25: "rider", 26: "car", 27: "truck", 28: "bus", 31: "train",
    32: "motorcycle", 33: "bicycle",
}  # fmt: skip
LAST = 33  # ids from 0 to this one are meant, most of them to be ignored
PHOTO = "_leftImg8bit"
TRUTHS = ("gtFine", "gtCoarse")
KINDS = ("labelIds", "labelTrainIds")


def is_here(place: Path) -> bool:
    return (place / "leftImg8bit").is_dir() and any((place / name).is_dir() for name in TRUTHS)


def read(place: Path) -> Regions:
    truth = next(name for name in TRUTHS if (place / name).is_dir())
    regions = Regions({}, {})
    kind = next((k for k in KINDS if _masks(place / truth, k)), None)
    if kind is None:
        raise ValueError(
            f"convert: {str(place / truth)!r} has no NAME_{truth}_labelIds.png; unpack the archive "
            f"of labels there (polygons alone: cityscapesscripts' createTrainIdLabelImgs)"
        )
    inside = Inside(place)
    for split in sorted(f.name for f in (place / truth).glob("*/") if SPLITS.get(f.name)):
        if SPLITS[split] == "test":
            regions.note("folders of blank labels (left out)", f"{truth}/test")
            continue
        photos = {
            name.removesuffix(Path(name).suffix).removesuffix(PHOTO): name
            for name in contents(place / "leftImg8bit" / split, PHOTOS).names
        }
        rows = regions.splits.setdefault(SPLITS[split], [])
        for stem, name in sorted(_masks(place / truth / split, kind).items()):
            if stem not in photos:
                regions.note("masks without a picture (left out)", name)
                continue
            pair = Masked(
                place / "leftImg8bit" / split / photos.pop(stem), place / truth / split / name,
                Path(stem).name,
            )  # fmt: skip
            inside.check((pair.photo, pair.mask), "convert")
            rows.append(pair)
        for name in photos.values():
            regions.note("pictures without a mask (left out)", name)
    if kind == "labelIds":
        regions.classes = dict(CLASSES)
        regions.ignored = [i for i in range(LAST + 1) if i not in CLASSES] + [IGNORED]
    else:
        regions.classes = dict(enumerate(CLASSES.values()))
    return regions


def _masks(folder: Path, kind: str) -> dict[str, str]:
    """Files of labels by CITY/NAME."""
    end = f"_{kind}"
    masks: dict[str, str] = {}
    for name in contents(folder, LOSSLESS).names:
        stem = str(Path(name).with_suffix(""))
        if stem.endswith(end):
            masks[stem.removesuffix(end).rpartition("_")[0]] = name
    return masks
