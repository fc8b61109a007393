"""Refuse files and downloads that a run's recipe names outside of the run's folder.

These are weights to begin with, a teacher, pretrained weights. The person who types `train` names
them. A run's folder, however, may come from a stranger: `resume` opens and fetches none of them,
unless `--trust` says that the run is one's own. Models that come with saccade or by pip, and files
inside the folder, are always allowed.
"""

from pathlib import Path

from saccade import files, weights
from saccade.recipes.group import installed_names, path_fields
from saccade.recipes.recipe import Recipe


def check(recipe: Recipe, folder: Path) -> None:
    """Refuse a recipe that was read from a run if it would open other files, or fetch.

    Args:
        recipe: the run's, without what a checkpoint makes needless
        folder: the run's
    """
    if recipe.model.options.get("pretrained") and not weights.full(recipe.model.name):
        raise _refusal("model.options.pretrained", f"the weights of {recipe.model.name!r}", folder)
    for group in ("model", "task"):
        settings = getattr(recipe, group)
        for name in path_fields(settings):
            value = getattr(settings, name)
            if value and not _is_at_hand(value, installed_names(settings, name), folder):
                raise _refusal(f"{group}.{name}", repr(value), folder)


def _is_at_hand(value: str, installed: tuple[str, ...], folder: Path) -> bool:
    path = Path(value)
    if path.exists():
        return files.inside(path, folder)
    return value in installed or weights.full(value) is not None


def _refusal(key: str, what: str, folder: Path) -> ValueError:
    return ValueError(
        f"resume: {str(folder / 'recipe.json')!r} asks for {what} ({key}), which is no part of the "
        f"run; if the run is your own, 'saccade resume {folder} --trust'"
    )
