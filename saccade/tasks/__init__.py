"""Tasks, one package each: network, loss, prediction, metric, data and report in one place.

`register` makes one known that is defined elsewhere; see CONTRIBUTING.md.
"""

from saccade.tasks import autoencode, classify, detect, instances, segment, upscale
from saccade.tasks.definition import Preparation, TaskDefinition, Untrained
from saccade.tasks.figures import Figure
from saccade.tasks.registry import TASKS, of, of_notes, of_settings, register, untrained

__all__ = [
    "TASKS", "Figure", "Preparation", "TaskDefinition", "Untrained", "of", "of_notes",
    "of_settings", "register", "untrained",
]  # fmt: skip

for _task in (classify, detect, instances, segment, autoencode, upscale):
    register(_task.TASK)
