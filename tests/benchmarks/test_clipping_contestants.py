"""Contestants that need no other library, the check of their sums, and what is reported of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from clipping_suite import worker
from clipping_suite.contestants import CONTESTANTS
from clipping_suite.contestants.base import Setting, Step
from clipping_suite.job import Answer, Job, Outcome
from clipping_suite.machine import total_megabytes
from clipping_suite.processes import Environment
from clipping_suite.records import NOT_RUN, chosen, contenders, fits
from clipping_suite.runner import Plan, Runner, prepare
from clipping_suite.torch_network import problem, with_weights
from clipping_suite.workloads import Workload, named

from tacit.clipping.reference import ReferenceEngine
from tacit.clipping.rules import Flat

SETTINGS = (Setting(), Setting(piece=2), Setting(channels_last=True))


@pytest.fixture(autouse=True)
def pure_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TACIT_NATIVE", "0")
    monkeypatch.delenv("CLIPPING_SUITE_FASTDP", raising=False)
    monkeypatch.setattr(worker, "hold_to", lambda threads: None)
    monkeypatch.setattr(worker, "tune_allocator", lambda: True)


def job_for(folder: Path, contestant: str, workload: Workload) -> Job:
    prepare(workload, folder / "problem.npz", folder / "expected.npz")
    return Job(
        contestant=contestant,
        workload=workload.name,
        problem=str(folder / "problem.npz"),
        expected=str(folder / "expected.npz"),
        settings=(Setting(),),
        scout=True,
        tuned=True,
        threads=torch.get_num_threads(),
        steps=2,
        warmup=1,
        seconds=0.0,
        longest_step=60.0,
        tolerance=1e-3,
        batch=workload.batch,
    )


def answer_to(job: Job, folder: Path) -> Answer:
    worker.run(job, folder / "answer.json")
    return Answer.read(folder / "answer.json")


@pytest.mark.parametrize("name", ["plain", "ours-torch", "torch-func"])
def test_sums_agree_in_every_setting_and_steps_are_timed(name: str, tmp_path: Path) -> None:
    job = replace(job_for(tmp_path, name, named("lenet5-256", 5)), settings=SETTINGS)
    outcomes = answer_to(job, tmp_path).outcomes
    assert [outcome.setting for outcome in outcomes] == list(SETTINGS)
    for outcome in outcomes:
        assert outcome.status == "ok", outcome.reason
        assert outcome.deviation is not None and outcome.deviation < 1e-5
        assert len(outcome.times) == 2 and min(outcome.times) > 0
        assert outcome.memory is not None and outcome.memory_with_warmup is not None


def test_the_sum_is_that_of_the_reference_engine() -> None:
    given = problem(named("mlp", 4))
    found = worker.clipped_sum(CONTESTANTS["torch-func"].builder(), given, Setting())
    model = with_weights(given.workload.network, given.weights)
    engine = ReferenceEngine(model, Flat(given.workload.clip))
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    batch = (torch.from_numpy(given.x), torch.from_numpy(given.y))
    vector = engine.clipped_sum(lambda m, b: loss(m(b[0]), b[1]), [batch], 1).vector
    expected = {k: v.numpy() for k, v in engine.layout.views(vector).items()}
    assert worker.deviation(found, expected) < 1e-5


def test_some_records_are_clipped_and_others_are_not() -> None:
    for workload in (named("mlp", 16), named("lenet5-256", 16), named("text-mean", 16)):
        given = problem(workload)
        for factor, changed in ((1.0, True), (3.0, False), (1 / 3, True)):
            ours = CONTESTANTS["ours-torch"].builder()
            clip = factor * workload.clip
            sums = worker.clipped_sum(ours, given, Setting(), clip)
            whole = worker.clipped_sum(ours, given, Setting(), 1e30)
            assert (worker.deviation(sums, whole) > 1e-3) == changed
        scaled = {k: v / 3 for k, v in worker.clipped_sum(ours, given, Setting()).items()}
        assert worker.deviation(sums, scaled) > 1e-3


def test_a_wrong_sum_is_reported_and_its_time_is_not(tmp_path: Path) -> None:
    job = job_for(tmp_path, "ours-torch", named("mlp", 4))
    with np.load(job.expected) as stored:
        changed = {name: 1.1 * stored[name] for name in stored.files}
    np.savez(job.expected, **changed)
    outcome = answer_to(job, tmp_path).outcomes[0]
    assert outcome.status == "disagrees"
    assert outcome.deviation == pytest.approx(0.1 / 1.1, rel=1e-3)
    assert outcome.times == []


def test_noise_moves_the_weights() -> None:
    given = problem(named("mlp", 4))
    for name in ("ours-torch", "torch-func"):
        builder = CONTESTANTS[name].builder()
        quiet, noisy = (builder(given, Setting(), Step(clip=1.0, noise=n)) for n in (0.0, 1.0))
        quiet.step()
        noisy.step()
        moved = noisy.weights()["1.weight"] - quiet.weights()["1.weight"]
        assert np.std(moved) == pytest.approx(Step.learning_rate / 4, rel=0.02)


def test_an_absent_peer_is_reported(tmp_path: Path) -> None:
    outcome = answer_to(job_for(tmp_path, "fastdp-ghost", named("mlp", 2)), tmp_path).outcomes[0]
    assert (outcome.status, outcome.reason) == ("absent", "no path to fastDP was given (--fastdp)")


def test_a_step_beyond_the_cap_is_too_slow(tmp_path: Path) -> None:
    job = replace(job_for(tmp_path, "plain", named("mlp", 2)), longest_step=0.0)
    outcome = answer_to(job, tmp_path).outcomes[0]
    assert outcome.status == "too slow"
    assert "more than 0 s" in outcome.reason


def test_a_process_without_an_answer_is_stopped(tmp_path: Path) -> None:
    job = job_for(tmp_path, "plain", named("mlp", 2))
    answer = Environment(tmp_path, time_limit=0.01).ask(job)
    assert [outcome.status for outcome in answer.outcomes] == ["no answer"]
    assert answer.outcomes[0].reason == "stopped after 0 s"


def test_a_process_takes_turns_with_the_same_contestant(tmp_path: Path) -> None:
    job = replace(job_for(tmp_path, "plain", named("mlp", 2)), scout=False, steps=3)
    with Environment(tmp_path).seat(job) as seat:
        process = seat._process
        for _ in range(3):
            (outcome,) = seat.turn(60.0).outcomes
            assert (outcome.status, len(outcome.times)) == ("ok", 3)
            assert process.poll() is None
        process.kill()
        (outcome,) = seat.turn(60.0).outcomes
        assert (outcome.status, outcome.reason) == ("failed", "killed by SIGKILL")


def test_processes_are_there_together_if_they_fit_into_memory() -> None:
    assert fits([]) and fits([0.1 * total_megabytes()] * 2)
    assert not fits([0.3 * total_megabytes()] * 2)


def test_settings_that_are_close_are_timed_once_more_side_by_side(tmp_path: Path) -> None:
    job = replace(job_for(tmp_path, "plain", named("mlp", 4)), threads=1)
    for before, turns in ((9.0, 1), (0.9, 2), (0.01, 6)):
        close = [Outcome(Setting(), times=[before]), Outcome(Setting(piece=2), times=[before])]
        Runner(Plan(), Environment(tmp_path), str)._compare(close, job)
        assert all(len(outcome.times) >= 2 * turns for outcome in close)
        assert before not in close[0].times + close[1].times


def test_a_whole_workload_in_processes_of_their_own(tmp_path: Path) -> None:
    plan = Plan(
        contestants=("plain-default", "ours-torch", "fastdp-ghost"),
        rounds=1,
        turns=2,
        steps=2,
        seconds=0.0,
        warmup=1,
        default_allocator=False,
        every_setting=False,
        threads=1,
    )
    said: list[str] = []
    found = Runner(plan, Environment(tmp_path), said.append).measure(named("mlp", 6))
    plain, ours, peer = found["contestants"]
    assert len(plain["times"]) == len(ours["times"]) == 2
    assert ours["deviation"] < 1e-5
    assert [tried["setting"] for tried in ours["tried"]] == ["whole batch"]
    assert (peer["status"], peer["times"]) == ("absent", [])
    assert "mlp: round 1: tacit, torch only" in said


def test_everyone_may_choose_between_the_same_settings_or_nobody_but_plain(tmp_path: Path) -> None:
    images = named("lenet5-256", 6)
    for every in (True, False):
        runner = Runner(Plan(every_setting=every), Environment(tmp_path), str)
        offered = {name: runner._settings(CONTESTANTS[name], images) for name in CONTESTANTS}
        private = {offered[name] for name in CONTESTANTS if CONTESTANTS[name].clips}
        assert len(private) == 1
        assert len(private.pop()) == (4 if every else 1)
        assert len(offered["plain"]) == 4
        assert len(offered["plain-default"]) == 1


def test_nothing_is_dropped_in_silence_when_time_is_up(tmp_path: Path) -> None:
    plan = Plan(contestants=("plain", "jax"))
    said: list[str] = []
    found = Runner(plan, Environment(tmp_path), said.append).measure(named("mlp", 2), allowed=0.0)
    assert [c["status"] for c in found["contestants"]] == [NOT_RUN, NOT_RUN]
    assert said == [
        "mlp: settings: plain SGD, tuned: time is up",
        "mlp: settings: JAX vmap + jit: time is up",
    ]


def test_the_fastest_setting_is_chosen_or_one_that_keeps_to_a_bound_of_memory() -> None:
    whole, half, pieces = (
        Outcome(Setting(piece=piece), times=[seconds], memory=memory)
        for piece, seconds, memory in ((None, 1.0, 90.0), (128, 1.05, 50.0), (64, 1.2, 10.0))
    )
    tried = [pieces, whole, half]
    assert chosen(tried, None) is whole
    assert chosen(tried, 100.0) is whole
    assert chosen(tried, 60.0) is half
    assert chosen(tried, 20.0) is whole  # too slow is worse than too large
    assert contenders(tried) == tried
    far = Outcome(Setting(piece=32), times=[1.4])
    assert contenders([far, half, whole]) == [half, whole]
    assert contenders([whole]) == contenders([]) == []  # nothing to choose between
