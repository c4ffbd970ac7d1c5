"""Simulated jobs as the tables of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headway import __version__
from headway.fleet.schema import FAILURE_COLUMNS
from headway.ledger.buckets import BUCKETS, EFFECTIVE, LOST
from headway.sim.fleet import defaults
from headway.sim.fleet.account import COLUMN, Account, split_windows
from headway.sim.fleet.jobs import OUTCOMES, Floats, Ints, Jobs
from headway.sim.fleet.scenario import FleetScenario, host_name, slice_name
from headway.taxonomy import OWNERS

if TYPE_CHECKING:
    import pyarrow


RECOMPILE = COLUMN["waste.recompile"]
BLOCK = COLUMN["waste.checkpoint_block"]
WASTES = np.array([leaf.startswith("waste.") for leaf in BUCKETS])
JITTER = 0.1  # of a rank's waste, against that of the run


def store_tables(
    plan: FleetScenario, jobs: Jobs, account: Account, random: np.random.Generator
) -> dict[str, pyarrow.Table]:
    """Everything that a store keeps of these jobs."""
    made = _TableBuilder(plan, jobs, account)
    return {
        "runs": made.runs(),
        "attempts": made.attempts(),
        **made.hours_and_buckets(random),
        "failures": made.failures(),
        "checkpoints": made.checkpoints(),
        "compiles": made.compiles(),
        "nodes": made.nodes(),
    }


class _TableBuilder:
    """The columns that several tables share."""

    def __init__(self, plan: FleetScenario, jobs: Jobs, account: Account) -> None:
        import pyarrow as pa

        self.pa = pa
        self.plan, self.jobs, self.account = plan, jobs, account
        self.lives = account.lives
        self.run_ids = pa.array([f"{plan.seed & 0xFFFF:04x}{n:08x}" for n in jobs.number])
        self.length = account.seconds.sum(axis=1)
        self.effective = account.seconds[:, COLUMN[EFFECTIVE]]
        self.lost = account.seconds[:, COLUMN[LOST]]
        self.accelerators = jobs.accelerators[self.lives.job]
        self.hosts = pa.array([host_name(n) for n in range(max(h for _, h in plan.hosts.values()))])
        last = np.ones(self.lives.job.size, dtype=bool)
        last[:-1] = self.lives.job[1:] != self.lives.job[:-1]
        self.last = last
        ends = jobs.start + jobs.wall
        self.running = last & (ends[self.lives.job] > plan.end)

    def runs(self) -> pyarrow.Table:
        jobs, lives = self.jobs, self.lives
        count = jobs.start.size
        team, model = zip(*(slice_name(n) for n in range(self.plan.shares.size)), strict=True)
        running = self.running[self.last]
        outcome = self._outcomes()[self.last]
        codes = {"completed": 0, "stopped": 143, "failed": 1, "preempted": 143}
        exits = [None if word == "running" else codes[word] for word in outcome]
        seconds = self.account.by_job(count)
        first = lives.number == 0
        started = np.where(self._trained(first), self.account.setup[first], np.nan)
        return self._table(
            run_id=self.run_ids,
            run=self.pa.array([f"sim-{self.plan.seed}-{n}" for n in jobs.number]),
            job=np.array(model)[jobs.slice],
            team=np.array(team)[jobs.slice],
            model=np.array(model)[jobs.slice],
            cluster=self.pa.repeat("simulated", count),
            accelerator=jobs.fields["host_type"],
            **jobs.fields,
            headway=self.pa.repeat(__version__, count),
            started_at=self._time(jobs.start),
            ended_at=self._time(np.minimum(jobs.start + jobs.wall, self.plan.end)),
            running=running,
            outcome=outcome,
            exit_code=self.pa.array(exits, self.pa.int64()),
            accelerators=jobs.accelerators,
            attempts=np.bincount(lives.job, minlength=count),
            **self._failures_by_owner(count),
            steps=(seconds[:, COLUMN[EFFECTIVE]] / defaults.STEP_S).astype(np.int64),
            wall_s=seconds.sum(axis=1),
            effective_s=seconds[:, COLUMN[EFFECTIVE]],
            time_to_start_s=self._nullable(started),
        )

    def _failures_by_owner(self, count: int) -> dict[str, Any]:
        owned = {name: OWNERS[name][0] for name in OWNERS}
        owners = np.array([owned.get(str(name), "") for name in self.lives.category])
        return {
            column: np.bincount(self.lives.job, owners == owner, count).astype(np.int64)
            for owner, column in FAILURE_COLUMNS.items()
        }

    def attempts(self) -> pyarrow.Table:
        again = self.lives.number > 0
        steps = (self.effective / defaults.STEP_S).astype(np.int64)
        made = ((self.effective + self.lost) / defaults.STEP_S).astype(np.int64)
        before = np.cumsum(steps) - steps
        before -= before[np.flatnonzero(self.lives.number == 0)][self.lives.job - self.lives.job[0]]
        resumed = np.where(again, before.astype(float), np.nan)
        return self._table(
            **self._key(),
            started_at=self._time(self.lives.start),
            ended_at=self._time(self.lives.end),
            outcome=self._outcomes(),
            accelerators=self.accelerators,
            wall_s=self.length,
            effective_s=self.effective,
            lost_s=self.lost,
            time_to_recover_s=self._nullable(np.where(again, self.account.setup, np.nan)),
            first_step=self._whole(np.where(made > 0, before + 1.0, np.nan)),
            last_step=self._whole(np.where(made > 0, before + made.astype(float), np.nan)),
            resumed_from=self._whole(resumed),
        )

    def hours_and_buckets(self, random: np.random.Generator) -> dict[str, pyarrow.Table]:
        cut = split_windows(self.account)
        row, leaf = np.nonzero(cut.seconds > 1e-6)
        seconds = cut.seconds[row, leaf]
        attempt, begin = cut.attempt[row], cut.begin[row]
        hours = self._table(
            **self._key(attempt),
            hour=self._time(begin),
            leaf=self._words(self.pa.array(BUCKETS), leaf),
            seconds=seconds,
            accelerator_s=seconds * self.accelerators[attempt],
        )
        ranks = self.accelerators[attempt]
        each = np.repeat(np.arange(row.size), ranks)
        rank = np.arange(each.size) - np.repeat(np.cumsum(ranks) - ranks, ranks)
        job = self.lives.job[attempt[each]]
        buckets = self._table(
            **self._key(attempt[each]),
            rank=rank,
            host=self._words(self.hosts, self._host(job, rank)),
            hour=self._time(begin[each]),
            leaf=self._words(self.pa.array(BUCKETS), leaf[each]),
            seconds=self._by_rank(row, leaf, seconds, each, rank, random),
        )
        return {"hours": hours, "buckets": buckets}

    def _by_rank(
        self,
        row: Ints,
        leaf: Ints,
        seconds: Floats,
        each: Ints,
        rank: Ints,
        random: np.random.Generator,
    ) -> Floats:
        """Ranks waste a little more or less than the run; training makes up for it."""
        found = seconds[each]
        new = np.concatenate([[1], np.diff(row) > 0]).cumsum() - 1  # which attempt and hour
        groups = int(new[-1]) + 1 if new.size else 0
        trains = np.bincount(new, leaf == COLUMN[EFFECTIVE], groups) > 0
        width = int(rank.max()) + 1 if rank.size else 1
        place = new[each] * width + rank
        wastes = WASTES[leaf[each]] & trains[new[each]]
        extra = np.where(wastes, found * random.uniform(-JITTER, JITTER, found.size), 0.0)
        owed = np.bincount(place, extra, groups * width)
        trained = leaf[each] == COLUMN[EFFECTIVE]
        found += extra
        found[trained] -= owed[place[trained]]
        return found

    def failures(self) -> pyarrow.Table:
        lives = self.lives
        rows = np.flatnonzero(lives.category != "")
        category = lives.category[rows]
        owned = [OWNERS[str(name)] for name in category]
        hosted = lives.host[rows] >= 0
        ended_by = np.append(lives.number[1:] > 0, False)[rows]
        recover = np.append(self.account.setup[1:], np.nan)[rows]
        host = self._words(self.hosts, np.maximum(lives.host[rows], 0))
        return self._table(
            **self._key(rows),
            at=self._time(lives.end[rows]),
            category=category,
            owner=self.pa.array([owner for owner, _ in owned], self.pa.string()),
            retry=self.pa.array([retry for _, retry in owned], self.pa.string()),
            host=self.pa.compute.if_else(self.pa.array(hosted), host, None),
            evidence=self.pa.repeat("simulated", rows.size),
            accelerators=self.accelerators[rows],
            lost_s=self.lost[rows],
            time_to_recover_s=self._nullable(np.where(ended_by, recover, np.nan)),
        )

    def checkpoints(self) -> pyarrow.Table:
        loop = np.maximum(self.length - self.account.setup, 0)
        count = (loop // defaults.SAVE_EVERY_S).astype(np.int64)
        row = np.repeat(np.arange(count.size), count)
        nth = np.arange(row.size) - np.repeat(np.cumsum(count) - count, count) + 1
        into = nth * defaults.SAVE_EVERY_S
        return self._table(
            **self._key(row),
            at=self._time(self.lives.start[row] + self.account.setup[row] + into),
            step=(into / defaults.STEP_S).astype(np.int64),
            level=self.pa.repeat("disk", row.size),
            blocked_s=self.account.seconds[row, BLOCK] / count[row],
            accelerators=self.accelerators[row],
        )

    def compiles(self) -> pyarrow.Table:
        leaves = ["start.pt2_compile", "recover.pt2_compile"]
        cold = self.account.seconds[:, [COLUMN[leaf] for leaf in leaves]].sum(axis=1)
        again = self.account.seconds[:, RECOMPILE]
        row = np.concatenate([np.flatnonzero(cold > 0), np.flatnonzero(again > 0)])
        recompile = np.arange(row.size) >= (cold > 0).sum()
        return self._table(
            **self._key(row),
            at=self._time(self.lives.start[row]),
            place=self.pa.repeat("model.forward", row.size),
            reason=self.pa.array(["a size changed" if one else None for one in recompile]),
            recompile=recompile,
            cached=np.zeros(row.size, dtype=bool),
            ranks=self.accelerators[row],
            times=self.accelerators[row],
            seconds=np.where(recompile, again[row], cold[row]),
            accelerators=self.accelerators[row],
        )

    def nodes(self) -> pyarrow.Table:
        jobs, lives = self.jobs, self.lives
        hosts = jobs.hosts[lives.job]
        row = np.repeat(np.arange(hosts.size), hosts)
        nth = np.arange(row.size) - np.repeat(np.cumsum(hosts) - hosts, hosts)
        host = jobs.host(lives.job[row], nth)
        # A job wider than its pool has more ranks on its last host.
        full = np.minimum(defaults.GPUS, self.accelerators[row] - nth * defaults.GPUS)
        rest = self.accelerators[row] - nth * defaults.GPUS
        ranks = np.where(nth == hosts[row] - 1, rest, full)
        return self._table(
            **self._key(row),
            host=self._words(self.hosts, host),
            started_at=self._time(lives.start[row]),
            ended_at=self._time(lives.end[row]),
            accelerators=ranks,
            wall_s=self.length[row],
            accelerator_s=self.length[row] * ranks,
            effective_s=self.effective[row] * ranks,
            failures=(lives.host[row] == host).astype(np.int64),
        )

    def _host(self, job: Ints, rank: Ints) -> Ints:
        return self.jobs.host(job, np.minimum(rank // defaults.GPUS, self.jobs.hosts[job] - 1))

    def _trained(self, rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return self.effective[rows] + self.lost[rows] > 0

    def _outcomes(self) -> NDArray[np.str_]:
        found = np.array(OUTCOMES, dtype="<U10")[self.jobs.outcome[self.lives.job]]
        found[~self.last] = "failed"
        found[~self.last & (self.lives.category == "preemption")] = "preempted"
        found[self.running] = "running"
        return found

    def _key(self, rows: Ints | None = None) -> dict[str, Any]:
        chosen = slice(None) if rows is None else rows
        return {
            "run_id": self._words(self.run_ids, self.lives.job[chosen]),
            "attempt": self.lives.number[chosen],
        }

    def _words(self, words: Any, index: Ints) -> Any:
        """Repeated words, kept once each."""
        return self.pa.DictionaryArray.from_arrays(self.pa.array(index.astype(np.int32)), words)

    def _time(self, seconds: Floats) -> Any:
        micros = np.round(seconds * 1e6).astype("datetime64[us]")
        return self.pa.array(micros)

    def _nullable(self, values: Floats) -> Any:
        return self.pa.array(values, mask=np.isnan(values))

    def _whole(self, values: Floats) -> Any:
        mask = np.isnan(values)
        return self.pa.array(np.where(mask, 0, values).astype(np.int64), mask=mask)

    def _table(self, **columns: Any) -> pyarrow.Table:
        return self.pa.table(
            {
                name: self.pa.array(column) if isinstance(column, np.ndarray) else column
                for name, column in columns.items()
            }
        )
