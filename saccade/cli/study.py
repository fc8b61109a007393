"""`study`: a paper's tables, trained at small scale."""

from pathlib import Path
from typing import Annotated

from saccade.cli.command import Count, Device, Folder, Value
from saccade.cli.console import note, say, show, show_json, table


def study(
    name: Annotated[str, Value("linglo|qna|qna_autoencoders|sasa")] | None = None,
    *,
    grid: Annotated[str, Value("fig5|table6|...")] | None = None,
    data: Folder | None = None,
    out: Folder = "runs/study",
    seeds: Count | None = None,
    pages: Folder | None = None,
    only_report: bool = False,
    shipped: bool = False,
    device: Device | None = None,
    json: bool = False,
) -> None:
    """Train a paper's tables at small scale, row by row, and compare the rows.

    Every row is trained with the same seeds; rows of several tables that are alike are trained
    once. Finished runs are skipped and interrupted ones go on, so call it again until it ends.
    You may start it in several terminals at once, one a core: each process trains other runs.
    OMP_NUM_THREADS=1 keeps a process to one core.

    Examples:
        saccade study
        saccade study linglo --data cifar10
        saccade study linglo --grid fig5
        saccade study sasa --seeds 1 --only-report
        saccade study qna --shipped

    Args:
        name: the study; all in a table if left out
        grid: the table or figure of the paper whose rows are trained and shown; all if left out
        data: the images; the study's own set if left out
        out: the runs' folder
        seeds: how many seeds each row is trained with; the study's own number if left out
        pages: where the page and its pictures are written; beside the runs if left out
        only_report: train nothing, and report what there is
        shipped: count the runs whose results came with the package, and train the others
        device: the best there is if left out
        json: print JSON
    """
    from saccade.study import book, result, run
    from saccade.study.grid import slug
    from saccade.study.page import cells, write

    if name is None:
        _list(json)
        return
    whole = book.find(name)
    one = whole.only(grid) if grid else whole
    data_path = data or one.data
    if not data_path:
        raise ValueError(f"study {name}: which images? --data FOLDER")
    numbers = tuple(range(seeds)) if seeds else one.seeds
    folder = Path(out) / name
    elsewhere: list[str] = []
    before = result.shipped(name) if shipped else None
    if before and before.data != Path(str(data_path)).name:
        raise ValueError(
            f"study {name}: the package's results are of {before.data!r}, got --data {data_path}; "
            f"leave out --shipped"
        )
    if not only_report:
        from saccade.cli.learn import stoppable, watcher

        with stoppable(folder, f"saccade study {name}"):
            elsewhere = run.train(
                one, str(data_path), folder, numbers, before=before, watch=watcher(None),
                say=note, device=device,
            )  # fmt: skip
    results = run.collected(whole, str(data_path), folder, numbers, before)
    paths = write(whole, results, folder if pages is None else Path(pages))
    if json:
        show_json({"study": name, **results.plain(), "files": [str(path) for path in paths]})
        return
    for each in one.grids:
        rows = cells(each, results)
        shape = table(*rows[0], right=tuple(head for head in rows[0] if head != "label"))
        for row in rows:
            shape.add_row(*row.values())
        say(f"\n{each.where}: {each.asks}", "bold")
        show(shape)
    for path in elsewhere:
        note(f"left to another process: {path}")
    figures = [path for path in paths[1:] if grid and path.stem.endswith(f"-{slug(grid)}")]
    for path in (*paths[:1], *figures):
        say(f"written: {path}")


def _list(json: bool) -> None:
    """The studies in a row each."""
    from saccade.study.book import STUDIES
    from saccade.study.result import shipped

    rows = []
    for one in STUDIES.values():
        result, settings = shipped(one.name), one.settings()
        finished_count = len(result.settings) if result else 0
        rows.append(
            {
                "study": one.name, "settings": len(settings), "seeds": len(one.seeds),
                "in the package": finished_count, "about": one.about,
            }
        )  # fmt: skip
    if json:
        show_json(rows)
        return
    shape = table(*rows[0], right=("settings", "seeds", "in the package"), prose=("about",))
    for row in rows:
        shape.add_row(*map(str, row.values()))
    show(shape)
