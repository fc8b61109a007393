"""The pictures of docs/gallery.md: `python -m tools.gallery` draws them anew.

Photographs are the four in the package, which anybody may use; models are those in the package.
"""

from pathlib import Path

from PIL import Image

import saccade
from saccade import samples, view
from saccade.face import sight

OUT = Path(__file__).resolve().parents[1] / "docs" / "gallery"
WIDEST = 1000  # pixels
PIXEL = (110, 190)  # row and column that looks, in the cat


def save(sheet: Image.Image, name: str) -> None:
    """As a small JPEG."""
    sheet.thumbnail((WIDEST, 4 * WIDEST))
    sheet.save(OUT / f"{name}.jpg", quality=78, optimize=True)


def evidence(model, photo: str) -> Image.Image:
    """What speaks for the two likeliest classes."""
    answer = model.predict(samples.path(photo), top=2)
    cat = sight.sight_of(model, answer.photo, photo)
    labels = [model.notes["classes"].index(label) for label in answer.labels]
    maps = view.class_evidence(model, cat.x, labels, fine=True, relative=True)
    names = [f"{n} {100 * s:.0f}%" for n, s in zip(answer.labels, answer.scores, strict=True)]
    return view.sheet(cat.photo, {photo: maps}, "evidence", names, signed=True, side=view.LARGE)


def main() -> None:
    OUT.mkdir(exist_ok=True)
    linglo, qna, sasa = (saccade.load(f"{name}_nano") for name in ("linglo", "qna", "sasa"))
    for photo in samples.NAMES:
        save(linglo.attention(samples.path(photo), size=192).draw(), f"linglo_{photo}")
    save(qna.attention(samples.path("cat"), size=192).draw(), "qna_cat")
    save(sasa.attention(samples.path("cat"), at=PIXEL, size=192).draw(), "sasa_cat")
    save(evidence(linglo, "cat"), "evidence_cat")


if __name__ == "__main__":
    main()
