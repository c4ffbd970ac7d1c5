"""The laws of the simulator, on any workload; and what theory says of simple ones."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.checkpoint.interval import renewal
from headway.errors import UsageError
from headway.schedule import policies, preemption
from headway.schedule.model import Cluster, Job, JobSpec, Tenant
from headway.schedule.preemption import PreemptionContext
from headway.schedule.quotas import DAY, QuotaChange
from headway.sim import outages as sim_outages
from headway.sim import traces
from headway.sim.cluster.compare import mean_interval, measure
from headway.sim.cluster.engine import Engine
from headway.sim.cluster.scenario import (
    JobTimings,
    Setting,
    SimulationResult,
    simulate,
    timings_from_runs,
)
from headway.sim.outages import Outage
from headway.sim.traces import make_trace
from headway.testing import FakeRun
from tests.support import examples, has_code
from tests.unit.sim.policy_audit import AuditedPolicy, poisson_trace

SPECS = st.lists(
    st.builds(
        JobSpec,
        submit=st.floats(0, 50_000),
        work=st.floats(1, 20_000),
        gpus=st.sampled_from([1, 1, 1, 2, 3, 8, 12, 16]),
        tenant=st.sampled_from("abc"),
    ),
    min_size=1,
    max_size=60,
)
OUTAGES = st.lists(
    st.builds(
        lambda node, start, length, notice: Outage(node, start, start + length, notice),
        st.integers(0, 3),
        st.floats(0, 60_000),
        st.floats(1, 5_000),
        st.sampled_from([0.0, 120.0]),
    ),
    max_size=6,
)
NAMES = [*policies.BUILT_IN, "newest:notice=on", "least-cost:notice=off:phase=on:stagger=on"]
NAMES += ["least-cost:reserve=100"]


def spent(job: Job) -> float:
    return job.startup_s + job.recovery_s + job.retained_s + job.lost_s + job.saving_s


Life = tuple[float, float, tuple[tuple[int, int], ...]]


def recorded(lives: list[Life]) -> Callable[[Engine, Job, float, float], None]:
    """Every attempt: when it began, when it had left, and where it was."""
    account = Engine._account

    def note(engine: Engine, job: Job, stopped: float, left: float) -> None:
        lives.append((job.since, left, job.placement))
        account(engine, job, stopped, left)

    return note


def never_twice(lives: list[Life], gpus: int, size: int) -> None:
    """At no instant is more of a node in use than it has; leaving comes before coming."""
    changes: dict[int, list[tuple[float, int]]] = {}
    for since, left, places in lives:
        for node, count in places:
            changes.setdefault(node, []).extend([(since, count), (left, -count)])
    for node, moves in changes.items():
        has = min(size, gpus - node * size)
        used = 0
        for _, count in sorted(moves):
            used += count
            assert used <= has, f"{used} of {has} on node {node}"


@pytest.mark.timeout(120)
@settings(max_examples=examples(120), deadline=None)
@given(
    specs=SPECS,
    outages=OUTAGES,
    name=st.sampled_from(NAMES),
    gpus=st.sampled_from([16, 20, 32]),
    per_node=st.sampled_from([8, 32]),
    every=st.floats(100, 10_000),
    habit=st.builds(JobTimings, st.floats(0, 100), st.floats(0, 500), st.floats(0, 90)),
    silent=st.sampled_from([0.0, 0.5]),
)
def test_conservation(
    specs: list[JobSpec],
    outages: list[Outage],
    name: str,
    gpus: int,
    per_node: int,
    every: float,
    habit: JobTimings,
    silent: float,
) -> None:
    trace = make_trace("any", specs)
    setting = Setting(gpus=gpus, per_node=per_node, interval=every, habits=(habit,), silent=silent)
    nodes = -(-gpus // min(per_node, gpus))
    outages = sorted((o for o in outages if o.node < nodes), key=lambda o: o.start)
    policy = AuditedPolicy(policies.parse_policy(name))
    lives: list[Life] = []
    with mock.patch.object(Engine, "_account", recorded(lives)):
        played = simulate(trace, setting, policy, 1, outages=outages)
    never_twice(lives, gpus, min(per_node, gpus))
    assert len(played.jobs) == len(specs), "no job is lost"
    for job in played.jobs:
        assert job.ended_at is not None and job.retained_s == job.work, "the work is done"
        assert spent(job) == pytest.approx(job.held_s, abs=1e-5), "each second held is told"
        assert job.queued_s + job.held_s == pytest.approx(job.ended_at - job.submit, abs=1e-5)
        assert min(job.lost_s, job.saving_s, job.startup_s, job.recovery_s, job.queued_s) >= -1e-9
        assert job.attempts == 1 + job.preemptions + job.faults
    held = sum(job.gpus * job.held_s for job in played.jobs)
    assert held <= gpus * played.end + 1e-3, "no accelerator is used twice"
    for tenant in played.tenants:
        assert tenant.used == tenant.queued_gpus == 0 and not tenant.waiting
        assert tenant.served <= tenant.entitled + 1e-6


def test_borrowing_ends_where_the_owner_comes() -> None:
    jobs = [JobSpec(0, 10_000, 8, "a"), JobSpec(10, 10_000, 8, "a"), JobSpec(100, 50, 8, "b")]
    setting = Setting(gpus=16, quota={"a": 8, "b": 8}, habits=(JobTimings(save=0),), interval=1e9)
    played = simulate(make_trace("t", jobs), setting, policies.parse_policy("newest"))
    first, second, owner = played.jobs
    assert owner.first_start == 100 and owner.ended_at == 150
    assert [first.preemptions, second.preemptions] == [0, 1]
    assert (second.lost_s, second.recovery_s, second.queued_s) == (90, 300, 50)
    assert second.ended_at == 150 + 300 + 10_000


def test_without_borrowing_nobody_is_evicted() -> None:
    jobs = [JobSpec(0, 1000, 8, "a"), JobSpec(0, 1000, 8, "a"), JobSpec(100, 50, 8, "b")]
    setting = Setting(gpus=16, quota={"a": 8, "b": 8}, habits=(JobTimings(save=0),))
    played = simulate(make_trace("t", jobs), setting, policies.parse_policy("newest"), borrow=False)
    assert played.preemptions == 0
    assert [job.queued_s for job in played.jobs] == [0, 1000, 0]


@pytest.mark.parametrize(("grace", "lost", "start"), [(60.0, 0.0, 1015.0), (10.0, 1000.0, 1000.0)])
def test_a_notice_saves_what_a_save_in_time_can(grace: float, lost: float, start: float) -> None:
    jobs = [JobSpec(0, 5000, 8, "a"), JobSpec(1000, 50, 8, "b")]
    setting = Setting(gpus=8, quota={"a": 0, "b": 8}, interval=1e9, grace=grace)
    played = simulate(make_trace("t", jobs), setting, policies.parse_policy("least-cost"))
    victim, owner = played.jobs
    assert (victim.lost_s, owner.first_start) == (lost, start)


def test_nobody_starts_on_what_a_victim_has_not_left() -> None:
    jobs = [JobSpec(0, 5000, 8, "a"), JobSpec(1000, 50, 2, "b"), JobSpec(1005, 50, 4, "a")]
    setting = Setting(gpus=8, quota={"a": 0, "b": 8}, interval=1e9)
    played = simulate(make_trace("t", jobs), setting, _ours())
    assert [job.first_start for job in played.jobs] == [0, 1015, 1015]


def test_a_node_that_fails_while_victims_are_leaving_it() -> None:
    jobs = [JobSpec(0, 5000, 8, "a"), JobSpec(1000, 50, 8, "b")]
    setting = Setting(gpus=8, quota={"a": 0, "b": 8}, interval=1e9)
    outage = Outage(0, 1005.0, 1010.0)
    played = simulate(
        make_trace("t", jobs), setting, policies.parse_policy("least-cost"), outages=[outage]
    )
    victim, owner = played.jobs
    assert (owner.attempts, owner.first_start, owner.queued_s) == (1, 1015.0, 15.0)
    assert (victim.retained_s, victim.lost_s, victim.held_s + victim.queued_s) == (
        5000,
        0,
        victim.ended_at,
    )


def test_a_spot_node_that_says_when_it_goes() -> None:
    jobs = [JobSpec(0, 5000, 8, "a")]
    setting = Setting(gpus=8, interval=1e9)
    for notice, lost, kept in ((120.0, 0.0, 985.0), (5.0, 1000.0, 0.0)):
        outage = Outage(0, 1000.0, 1100.0, notice)
        (job,) = simulate(make_trace("t", jobs), setting, _ours(), outages=[outage]).jobs
        assert (job.faults, job.lost_s, job.queued_s) == (1, lost, 100)
        assert job.ended_at == 1100 + 300 + 5000 - kept


def _ours() -> preemption.Policy:
    return policies.parse_policy("least-cost")


def test_a_gang_gets_whole_nodes() -> None:
    jobs = [JobSpec(0, 100, 5, "a"), JobSpec(0, 100, 5, "a"), JobSpec(1, 100, 6, "a")]
    setting = Setting(gpus=16, quota={"a": 16})
    played = simulate(make_trace("t", jobs), setting, policies.parse_policy("newest"))
    assert [job.queued_s for job in played.jobs] == [0, 0, 99], "6 are free, but on two nodes"
    one_node = Setting(gpus=16, per_node=16, quota={"a": 16})
    assert not any(
        job.queued_s for job in simulate(make_trace("t", jobs), one_node, _newest()).jobs
    )


def _newest() -> preemption.Policy:
    return policies.parse_policy("newest")


@pytest.mark.parametrize(("name", "start"), [("newest", 1940.0), ("newest:reserve=50", 140.0)])
def test_nodes_are_held_back_for_a_gang_that_is_passed(name: str, start: float) -> None:
    """Five tenants hold 5 of 8 on each node; the gang of 15 needs two nodes at once."""
    jobs = [JobSpec(0, 20.0 * (n + 1), 5, tenant) for n, tenant in enumerate("bcdef")]
    jobs += [JobSpec(0, 100, 5, tenant) for tenant in "bcdef" for _ in range(19)]
    jobs += [JobSpec(10, 500, 15, "a")]
    quota = {"a": 15, **dict.fromkeys("bcdef", 5)}
    setting = Setting(gpus=40, quota=quota, interval=1e9)
    played = simulate(make_trace("t", jobs), setting, policies.parse_policy(name))
    gang = max(played.jobs, key=lambda job: job.gpus)
    assert gang.in_quota and gang.first_start == start and played.preemptions == 0
    assert all(job.retained_s == job.work for job in played.jobs)


def test_a_gang_keeps_nothing_back_on_a_node_that_fails() -> None:
    jobs = [JobSpec(0, 100.0 * (n + 1), 5, tenant) for n, tenant in enumerate("bc")]
    jobs += [JobSpec(0, 100, 5, tenant) for tenant in "bc" for _ in range(9)]
    jobs += [JobSpec(10, 500, 15, "a")]
    setting = Setting(gpus=32, quota={"a": 15, "b": 5, "c": 5}, interval=1e9)
    outages = [Outage(node, 60.0 + node, 400.0) for node in range(4)]
    policy = AuditedPolicy(policies.parse_policy("newest:reserve=20"))
    played = simulate(make_trace("t", jobs), setting, policy, outages=outages)
    assert all(job.retained_s == job.work for job in played.jobs)


def test_a_quota_that_changes() -> None:
    """From day 1 on the accelerators are b's: what a has it borrows, and b takes it back."""
    jobs = [JobSpec(0, 3 * DAY, 8, "a"), JobSpec(0.5 * DAY, 100, 8, "b")]
    changes = (QuotaChange(DAY, "a", 0), QuotaChange(DAY, "b", 8))
    setting = Setting(gpus=8, quota={"a": 8, "b": 0}, quota_changes=changes, interval=1e9)
    played = simulate(make_trace("t", jobs), setting, _newest())
    first, owner = played.jobs
    assert owner.first_start == DAY and first.preemptions == 1
    a, b = played.tenants
    assert a.served == pytest.approx(8 * DAY) and a.borrowed == pytest.approx(
        8 * (first.held_s - DAY)
    )
    assert b.served == b.entitled == pytest.approx(8 * 100)
    with pytest.raises(UsageError, check=has_code("quotas-too-large")) as error:
        simulate(make_trace("t", jobs), replace(setting, quota_changes=changes[1:] * 2), _newest())
    assert error.value.fields["day"] == 1


@pytest.mark.parametrize("change", [QuotaChange(DAY, "z", 1), QuotaChange(DAY, "a", -1)])
def test_a_change_of_quota_that_is_none(change: QuotaChange) -> None:
    setting = Setting(gpus=8, quota={"a": 8}, quota_changes=(change,))
    with pytest.raises(UsageError, check=has_code("quota-change-invalid")) as error:
        simulate(make_trace("t", [JobSpec(0, 1, 1, "a")]), setting, _newest())
    assert error.value.fields["tenant"] == change.tenant


class Cruel:
    """Evicts where that breaks a quota, or starts nothing."""

    notice = stagger = False

    def __init__(self, every: bool) -> None:
        self.every = every

    def victims(self, scene: PreemptionContext) -> list[Job]:
        running = [job for tenant in scene.tenants for job in tenant.running.values()]
        return running if self.every else running[:1]


@pytest.mark.parametrize("every", [True, False])
def test_a_policy_that_breaks_the_rules_is_refused(every: bool) -> None:
    jobs = [JobSpec(0, 9000, 2, "a"), JobSpec(0, 9000, 2, "b"), JobSpec(0, 9000, 4, "a")]
    jobs += [JobSpec(10, 100, 4, "c")]
    setting = Setting(gpus=8, quota={"a": 2, "b": 2, "c": 4})
    with pytest.raises(UsageError, check=has_code("policy-choice-invalid")) as error:
        simulate(make_trace("t", jobs), setting, Cruel(every))
    assert error.value.fields == {"breaks_quota": every}


def test_a_job_that_is_larger_than_the_cluster() -> None:
    with pytest.raises(UsageError, check=has_code("job-too-large")):
        simulate(make_trace("t", [JobSpec(0, 1, 16, "a")]), Setting(gpus=8), _newest())


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same(name: str) -> None:
    trace = traces.make_synthetic(1500, 32, load=1.1)
    setting = Setting(gpus=32, silent=0.3)

    def go(seed: int) -> dict[str, float]:
        return measure(simulate(trace, setting, policies.parse_policy(name), seed))

    once = go(3)
    assert once["preemptions"] > 20
    assert go(3) == once
    assert go(4) != once


@pytest.mark.timeout(60)
def test_queueing_is_that_of_m_m_c() -> None:
    servers, mean, load = 4, 100.0, 0.75
    rate = servers * load / mean
    waits = []
    for seed in range(10):
        trace = poisson_trace(6000, rate, mean, seed)
        setting = Setting(gpus=servers, quota={"a": servers}, interval=1e12)
        played = simulate(trace, setting, _newest())
        waits.append(statistics.fmean(job.queued_s for job in played.jobs))
    offered = servers * load
    sums = sum(offered**k / math.factorial(k) for k in range(servers))
    last = offered**servers / math.factorial(servers) / (1 - load)
    expected = last / (sums + last) * mean / (servers * (1 - load))
    found = mean_interval(waits)
    assert found.half is not None and found.half < 0.15 * expected
    assert abs(found.mean - expected) < found.half * 1.5  # a 99.6 % interval: seeds are fixed


@pytest.mark.timeout(60)
@pytest.mark.parametrize("every", [300.0, 1200.0, 5000.0])
def test_waste_is_that_of_young_and_daly(every: float) -> None:
    """One node that fails at random, and one job on it for long: the exact renewal form."""
    mtbf, save, recover = 10_000.0, 40.0, 120.0
    shares = []
    for seed in range(12):
        draw = random.Random(seed)
        at, outages = 0.0, []
        while at < 3.2e6:
            at += draw.expovariate(1 / mtbf)
            outages.append(Outage(0, at, at))
        job = Job(0, JobSpec(0, 1e6, 1, "a"), 0)
        job.start = job.recover = recover
        job.save, job.interval, job.phase = save, every, every
        Engine(Cluster(1, 1), [Tenant("a", 1)], _newest()).run([job], outages)
        shares.append(1 - 1e6 / job.held_s)
    expected = renewal(every, cost=save, mtbf=mtbf, recover=recover)
    found = mean_interval(shares)
    assert found.half is not None and found.half < 0.1 * expected
    assert abs(found.mean - expected) < found.half * 1.5


@pytest.mark.timeout(60)
@pytest.mark.parametrize("per_node", [8, 64])
@pytest.mark.parametrize("name", NAMES)
def test_the_laws_hold_where_many_are_evicted(name: str, per_node: int) -> None:
    trace = traces.make_synthetic(1500, 64, load=1.2)
    policy = AuditedPolicy(policies.parse_policy(name))
    setting = Setting(gpus=64, per_node=per_node, silent=0.2)
    outages = sim_outages.draw_faults(8, 30 * 86400, 1) if per_node == 8 else []
    lives: list[Life] = []
    with mock.patch.object(Engine, "_account", recorded(lives)):
        played = simulate(trace, setting, policy, 1, outages=outages)
    never_twice(lives, 64, per_node)
    assert policy.asked > 20 and played.preemptions > 20
    for job in played.jobs:
        assert job.retained_s == job.work
        assert spent(job) == pytest.approx(job.held_s, abs=1e-5)


def test_habits_of_measured_runs(tmp_path: Path) -> None:
    for name, saves in (("saves", True), ("never", False)):
        job = FakeRun()
        job.launcher(begin=0)
        rank = job.process(begin=1, rank=0, world=1)
        rank.train(first=1, count=100, start=5, each=0.5)
        if saves:
            rank.event("checkpoint", 54, level="disk", step=90, durable_s=3.0)
        job.write(tmp_path / name)
    (habit,) = timings_from_runs([str(tmp_path / "saves")])
    assert habit.save == 3.0 and habit.start == habit.recover > 4
    with pytest.raises(UsageError, check=has_code("run-without-times")):
        timings_from_runs([str(tmp_path / "never")])


def test_figures_of_a_small_cluster() -> None:
    jobs = [JobSpec(0, 10_000, 8, "a"), JobSpec(10, 10_000, 8, "a"), JobSpec(100, 50, 8, "b")]
    setting = Setting(gpus=16, quota={"a": 8, "b": 8}, habits=(JobTimings(save=0),), interval=1e9)
    played: SimulationResult = simulate(make_trace("t", jobs), setting, _newest())
    found = measure(played)
    assert found["preemptions"] == 1 and found["attempts"] == 4
    assert found["preemption_ratio"] == 0.25
    assert found["lost_h"] == pytest.approx(8 * 90 / 3600)
    assert found["recover_h"] == pytest.approx(8 * 300 / 3600)
    assert found["in_quota_jobs"] == 2 and found["in_quota_wait_s"] == 0
    assert found["quota_satisfaction"] == 1 and found["jain_index"] == 1
    assert found["queue_min"] == pytest.approx(50 / 3 / 60)
    assert found["borrowed_h"] == pytest.approx(8 * (90 + 9850) / 3600)
    assert asdict(mean_interval([1.0, 3.0])) == {"mean": 2.0, "half": pytest.approx(12.7062047)}
