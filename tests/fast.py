"""Which tests belong to the fast tier (`-m fast`): those that train, compile and export nothing.

Chosen by file, so that a new test of such a file is fast without a mark. Parts that are slow all
the same are marked `slow`, as everywhere.
"""

FAST = (
    "tests/bench/test_linglo.py", "tests/bench/test_plain.py", "tests/recipes/test_everyday.py",
    "tests/cli/test_command.py", "tests/cli/test_complete.py", "tests/cli/test_pages.py",
    "tests/data/boxes/",
    "tests/data/convert/", "tests/data/masks/", "tests/data/test_augment.py",
    "tests/data/test_cifar.py", "tests/data/test_datasets.py", "tests/data/test_findings.py",
    "tests/data/test_folder.py", "tests/data/test_images.py", "tests/data/test_packaged.py",
    "tests/data/test_picture.py", "tests/data/test_unlabelled.py",
    "tests/engine/test_archive.py", "tests/engine/test_shards.py", "tests/models/test_pickled.py",
    "tests/test_files.py",
    "tests/engine/test_checkpoint.py", "tests/engine/test_make.py", "tests/engine/test_optim.py",
    "tests/engine/test_run.py", "tests/engine/test_state.py", "tests/engine/test_watch.py",
    "tests/infer/test_batches.py",
    "tests/draw/", "tests/infer/test_files.py",
    "tests/layers/test_anchors.py", "tests/layers/test_init.py", "tests/layers/test_norm.py",
    "tests/models/test_autoencoder.py", "tests/models/test_describe.py",
    "tests/models/test_detector.py", "tests/models/test_flax.py", "tests/models/test_saved.py",
    "tests/ops/test_precision.py", "tests/ops/test_where.py", "tests/paper/test_claim.py",
    "tests/paper/test_runs.py", "tests/recipes/",
    "tests/study/test_result.py", "tests/report/test_comparison.py",
    "tests/report/test_model_card.py", "tests/report/test_page.py",
    "tests/report/test_progress.py", "tests/report/test_summary.py",
    "tests/report/test_tables.py", "tests/report/test_tensorboard.py", "tests/report/test_write.py",
    "tests/tasks/autoencode/test_task.py", "tests/tasks/classify/test_metric.py",
    "tests/tasks/classify/test_task.py", "tests/tasks/detect/test_average_precision.py",
    "tests/tasks/detect/test_mistakes.py", "tests/tasks/detect/test_task.py",
    "tests/tasks/segment/test_overlap.py",
    "tests/tasks/segment/test_pixels.py", "tests/tasks/segment/test_task.py",
    "tests/tasks/test_definition.py", "tests/tasks/test_figures.py",
    "tests/tasks/test_registry.py", "tests/tasks/test_task.py", "tests/test_house.py",
    "tests/test_spelling.py", "tests/test_type_checks.py",
)  # fmt: skip


def is_fast(item):
    """Whether a test of pytest's belongs to the fast tier."""
    slow = item.get_closest_marker("slow") or item.get_closest_marker("data")
    return not slow and item.nodeid.startswith(FAST)
