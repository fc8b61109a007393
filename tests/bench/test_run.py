import pytest
import torch

from saccade.bench import machine
from saccade.bench.peer import Peer, Work
from saccade.bench.run import compare


def times(n):
    """A product of 200 x 200, n times."""
    x = torch.ones(200, 200)
    return Peer(lambda: torch.stack([x @ x for _ in range(n)]), ())


@pytest.mark.slow
def test_ratios_refer_to_the_baseline():
    peers = {"one": times(1), "many": times(30)}
    one, many = compare(peers, rounds=5).rows
    assert one.slower == one.heavier == 1
    assert many.slower > 5
    assert many.heavier == pytest.approx(30, rel=0.1)
    run = compare(peers, against="many", rounds=5)
    assert [row.name for row in run.rows] == ["one", "many"]
    assert run.rows[0].slower < 0.5
    assert run.by == "cpu"
    with pytest.raises(ValueError, match=r"'on' is not among .*; did you mean 'one'\?"):
        compare(peers, against="on", rounds=1)


@pytest.mark.slow
def test_speed_is_work_over_time_beside_the_limits():
    run = compare({"one": times(1), "said": Peer(lambda: torch.ones(1), (), Work(0, 10**9))})
    one, other = run.rows
    assert run.limits is not None
    assert one.gflops == pytest.approx(2 * 200**3 / one.cpu / 1e9)
    assert one.of_compute == pytest.approx(one.gflops / run.limits.gflops)
    assert one.of_limit[0] == max(one.of_compute, one.of_memory)
    assert other.of_limit == (other.of_memory, "memory")
    assert other.gflops == 0


def test_who_cannot_run_is_left_out_with_the_reason():
    absent = Peer(torch.add, (), absent="it is not here")
    heavy = Peer(torch.add, (), needs=2**60)
    run = compare({"absent": absent, "one": times(1), "heavy": heavy}, rounds=1)
    assert [row.name for row in run.rows] == [run.against] == ["one"]
    assert run.left_out["absent"] == "it is not here"
    assert "GB are free" in run.left_out["heavy"]
    with pytest.raises(ValueError, match="absent cannot run here: it is not here"):
        compare({"one": times(1), "absent": absent}, against="absent")
    with pytest.raises(ValueError, match="absent cannot run here"):
        compare({"absent": absent})


def test_an_interrupt_keeps_what_was_measured():
    def interrupted():
        raise KeyboardInterrupt

    run = compare({"one": times(1), "never": Peer(interrupted, ()), "two": times(2)})
    assert run.interrupted
    assert [row.name for row in run.rows] == ["one"]
    assert run.limits is not None
    assert compare({"never": Peer(interrupted, ())}).rows == []


def test_several_threads_are_timed_by_the_wall_clock():
    torch.set_num_threads(2)
    try:
        assert compare({"one": times(1)}, rounds=1).by == "wall"
    finally:
        torch.set_num_threads(1)


def test_progress_is_told():
    seen = []
    compare({"one": times(1)}, rounds=2, watch=lambda name, result: seen.append((name, result)))
    assert [name for name, _ in seen] == [*machine.limit_calls(), "one"] * 2
