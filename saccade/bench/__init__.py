"""Latency, peak memory and speed of operators, layers and models side by side, as ratios.

    compare(operators.peers("sasa", ["unfold", "halo"]))    an operator and its peers
    compare(models.peers(["linglo_b0", "pvt_v2_b0"]))       whole models
    deploy(["linglo_b0"], folder)                           a model in all ways to run it

Whatever is compared takes turns in one run, beside the machine's own limits; `report` prints, keeps
and draws what came of it. Each paper's peers are in the file of its name.
"""

from saccade.bench import models, operators
from saccade.bench.clock import interleave, peak_memory
from saccade.bench.deployment import Deployed, Deployment, deploy
from saccade.bench.machine import limits, stamp
from saccade.bench.peer import Peer, Shape
from saccade.bench.report import (
    append_json,
    append_lines,
    deployment_lines,
    deployment_notes,
    deployment_table,
    draw,
    draw_deployment,
    draw_over,
    lines,
    notes,
    table,
)  # fmt: skip
from saccade.bench.run import Comparison, Row, compare

__all__ = [
    "Comparison", "Deployed", "Deployment", "Peer", "Row", "Shape", "append_json", "append_lines",
    "compare", "deploy", "deployment_lines", "deployment_notes", "deployment_table", "draw",
    "draw_deployment", "draw_over", "interleave", "limits", "lines", "models", "notes",
    "operators", "peak_memory", "stamp", "table",
]  # fmt: skip
