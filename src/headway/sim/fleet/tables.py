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
WASTES = np.array([bucket.startswith("waste.") for bucket in BUCKETS])
JITTER = 0.1  # relative variation of waste between ranks


def store_tables(
    scenario: FleetScenario, jobs: Jobs, account: Account, random: np.random.Generator
) -> dict[str, pyarrow.Table]:
    """All tables of the jobs."""
    builder = _TableBuilder(scenario, jobs, account)
    return {
        "runs": builder.runs_table(),
        "attempts": builder.attempts_table(),
        **builder.hours_and_buckets_tables(random),
        "failures": builder.failures_table(),
        "checkpoints": builder.checkpoints_table(),
        "compiles": builder.compiles_table(),
        "nodes": builder.nodes_table(),
    }


class _TableBuilder:
    """Builds the tables, with the columns that several of them share."""

    def __init__(self, scenario: FleetScenario, jobs: Jobs, account: Account) -> None:
        import pyarrow as pa

        self.pa = pa
        self.scenario, self.jobs, self.account = scenario, jobs, account
        self.attempts = account.attempts
        self.run_ids = pa.array([f"{scenario.seed & 0xFFFF:04x}{n:08x}" for n in jobs.number])
        self.length = account.seconds.sum(axis=1)
        self.effective = account.seconds[:, COLUMN[EFFECTIVE]]
        self.lost = account.seconds[:, COLUMN[LOST]]
        self.accelerators = jobs.accelerators[self.attempts.job]
        self.hosts = pa.array(
            [host_name(n) for n in range(max(h for _, h in scenario.hosts.values()))]
        )
        last = np.ones(self.attempts.job.size, dtype=bool)
        last[:-1] = self.attempts.job[1:] != self.attempts.job[:-1]
        self.last = last
        ends = jobs.start + jobs.wall
        self.running = last & (ends[self.attempts.job] > scenario.end)

    def runs_table(self) -> pyarrow.Table:
        jobs, attempts = self.jobs, self.attempts
        count = jobs.start.size
        team, model = zip(*(slice_name(n) for n in range(self.scenario.shares.size)), strict=True)
        running = self.running[self.last]
        outcome = self._outcomes()[self.last]
        codes = {"completed": 0, "stopped": 143, "failed": 1, "preempted": 143}
        exits = [None if word == "running" else codes[word] for word in outcome]
        seconds = self.account.by_job(count)
        first = attempts.number == 0
        started = np.where(self._trained(first), self.account.setup[first], np.nan)
        return self._table(
            run_id=self.run_ids,
            run=self.pa.array([f"sim-{self.scenario.seed}-{n}" for n in jobs.number]),
            job=np.array(model)[jobs.slice],
            team=np.array(team)[jobs.slice],
            model=np.array(model)[jobs.slice],
            cluster=self.pa.repeat("simulated", count),
            accelerator=jobs.fields["host_type"],
            **jobs.fields,
            headway=self.pa.repeat(__version__, count),
            started_at=self._time(jobs.start),
            ended_at=self._time(np.minimum(jobs.start + jobs.wall, self.scenario.end)),
            running=running,
            outcome=outcome,
            exit_code=self.pa.array(exits, self.pa.int64()),
            accelerators=jobs.accelerators,
            attempts=np.bincount(attempts.job, minlength=count),
            **self._failures_by_owner(count),
            steps=(seconds[:, COLUMN[EFFECTIVE]] / defaults.STEP_S).astype(np.int64),
            wall_s=seconds.sum(axis=1),
            effective_s=seconds[:, COLUMN[EFFECTIVE]],
            time_to_start_s=self._nullable(started),
        )

    def _failures_by_owner(self, count: int) -> dict[str, Any]:
        owner_of = {name: OWNERS[name][0] for name in OWNERS}
        owners = np.array([owner_of.get(str(name), "") for name in self.attempts.category])
        return {
            column: np.bincount(self.attempts.job, owners == owner, count).astype(np.int64)
            for owner, column in FAILURE_COLUMNS.items()
        }

    def attempts_table(self) -> pyarrow.Table:
        is_restart = self.attempts.number > 0
        steps = (self.effective / defaults.STEP_S).astype(np.int64)
        steps_run = ((self.effective + self.lost) / defaults.STEP_S).astype(np.int64)
        before = np.cumsum(steps) - steps
        before -= before[np.flatnonzero(self.attempts.number == 0)][
            self.attempts.job - self.attempts.job[0]
        ]
        resumed = np.where(is_restart, before.astype(float), np.nan)
        return self._table(
            **self._key(),
            started_at=self._time(self.attempts.start),
            ended_at=self._time(self.attempts.end),
            outcome=self._outcomes(),
            accelerators=self.accelerators,
            wall_s=self.length,
            effective_s=self.effective,
            lost_s=self.lost,
            time_to_recover_s=self._nullable(np.where(is_restart, self.account.setup, np.nan)),
            first_step=self._whole(np.where(steps_run > 0, before + 1.0, np.nan)),
            last_step=self._whole(
                np.where(steps_run > 0, before + steps_run.astype(float), np.nan)
            ),
            resumed_from=self._whole(resumed),
        )

    def hours_and_buckets_tables(self, random: np.random.Generator) -> dict[str, pyarrow.Table]:
        windows = split_windows(self.account)
        row, bucket = np.nonzero(windows.seconds > 1e-6)
        seconds = windows.seconds[row, bucket]
        attempt, begin = windows.attempt[row], windows.begin[row]
        hours = self._table(
            **self._key(attempt),
            hour=self._time(begin),
            leaf=self._words(self.pa.array(BUCKETS), bucket),
            seconds=seconds,
            accelerator_s=seconds * self.accelerators[attempt],
        )
        ranks = self.accelerators[attempt]
        each = np.repeat(np.arange(row.size), ranks)
        rank = np.arange(each.size) - np.repeat(np.cumsum(ranks) - ranks, ranks)
        job = self.attempts.job[attempt[each]]
        buckets = self._table(
            **self._key(attempt[each]),
            rank=rank,
            host=self._words(self.hosts, self._host(job, rank)),
            hour=self._time(begin[each]),
            leaf=self._words(self.pa.array(BUCKETS), bucket[each]),
            seconds=self._by_rank(row, bucket, seconds, each, rank, random),
        )
        return {"hours": hours, "buckets": buckets}

    def _by_rank(
        self,
        row: Ints,
        bucket: Ints,
        seconds: Floats,
        each: Ints,
        rank: Ints,
        random: np.random.Generator,
    ) -> Floats:
        """Vary the waste of each rank; training compensates for the difference."""
        result = seconds[each]
        new = np.concatenate([[1], np.diff(row) > 0]).cumsum() - 1  # index of the attempt and hour
        groups = int(new[-1]) + 1 if new.size else 0
        trains = np.bincount(new, bucket == COLUMN[EFFECTIVE], groups) > 0
        width = int(rank.max()) + 1 if rank.size else 1
        place = new[each] * width + rank
        wastes = WASTES[bucket[each]] & trains[new[each]]
        extra = np.where(wastes, result * random.uniform(-JITTER, JITTER, result.size), 0.0)
        owed = np.bincount(place, extra, groups * width)
        trained = bucket[each] == COLUMN[EFFECTIVE]
        result += extra
        result[trained] -= owed[place[trained]]
        return result

    def failures_table(self) -> pyarrow.Table:
        attempts = self.attempts
        rows = np.flatnonzero(attempts.category != "")
        category = attempts.category[rows]
        owners = [OWNERS[str(name)] for name in category]
        has_host = attempts.host[rows] >= 0
        is_recovered = np.append(attempts.number[1:] > 0, False)[rows]
        recover = np.append(self.account.setup[1:], np.nan)[rows]
        host = self._words(self.hosts, np.maximum(attempts.host[rows], 0))
        return self._table(
            **self._key(rows),
            at=self._time(attempts.end[rows]),
            category=category,
            owner=self.pa.array([owner for owner, _ in owners], self.pa.string()),
            retry=self.pa.array([retry for _, retry in owners], self.pa.string()),
            host=self.pa.compute.if_else(self.pa.array(has_host), host, None),
            evidence=self.pa.repeat("simulated", rows.size),
            accelerators=self.accelerators[rows],
            lost_s=self.lost[rows],
            time_to_recover_s=self._nullable(np.where(is_recovered, recover, np.nan)),
        )

    def checkpoints_table(self) -> pyarrow.Table:
        loop = np.maximum(self.length - self.account.setup, 0)
        count = (loop // defaults.SAVE_EVERY_S).astype(np.int64)
        row = np.repeat(np.arange(count.size), count)
        nth = np.arange(row.size) - np.repeat(np.cumsum(count) - count, count) + 1
        into = nth * defaults.SAVE_EVERY_S
        return self._table(
            **self._key(row),
            at=self._time(self.attempts.start[row] + self.account.setup[row] + into),
            step=(into / defaults.STEP_S).astype(np.int64),
            level=self.pa.repeat("disk", row.size),
            blocked_s=self.account.seconds[row, BLOCK] / count[row],
            accelerators=self.accelerators[row],
        )

    def compiles_table(self) -> pyarrow.Table:
        buckets = ["start.pt2_compile", "recover.pt2_compile"]
        compile_s = self.account.seconds[:, [COLUMN[bucket] for bucket in buckets]].sum(axis=1)
        recompile_s = self.account.seconds[:, RECOMPILE]
        row = np.concatenate([np.flatnonzero(compile_s > 0), np.flatnonzero(recompile_s > 0)])
        recompile = np.arange(row.size) >= (compile_s > 0).sum()
        return self._table(
            **self._key(row),
            at=self._time(self.attempts.start[row]),
            place=self.pa.repeat("model.forward", row.size),
            reason=self.pa.array(
                ["a size changed" if is_recompile else None for is_recompile in recompile]
            ),
            recompile=recompile,
            cached=np.zeros(row.size, dtype=bool),
            ranks=self.accelerators[row],
            times=self.accelerators[row],
            seconds=np.where(recompile, recompile_s[row], compile_s[row]),
            accelerators=self.accelerators[row],
        )

    def nodes_table(self) -> pyarrow.Table:
        jobs, attempts = self.jobs, self.attempts
        hosts = jobs.hosts[attempts.job]
        row = np.repeat(np.arange(hosts.size), hosts)
        nth = np.arange(row.size) - np.repeat(np.cumsum(hosts) - hosts, hosts)
        host = jobs.host(attempts.job[row], nth)
        # If a job is wider than its pool, the last host has the remaining ranks.
        full = np.minimum(defaults.GPUS, self.accelerators[row] - nth * defaults.GPUS)
        rest = self.accelerators[row] - nth * defaults.GPUS
        ranks = np.where(nth == hosts[row] - 1, rest, full)
        return self._table(
            **self._key(row),
            host=self._words(self.hosts, host),
            started_at=self._time(attempts.start[row]),
            ended_at=self._time(attempts.end[row]),
            accelerators=ranks,
            wall_s=self.length[row],
            accelerator_s=self.length[row] * ranks,
            effective_s=self.effective[row] * ranks,
            failures=(attempts.host[row] == host).astype(np.int64),
        )

    def _host(self, job: Ints, rank: Ints) -> Ints:
        return self.jobs.host(job, np.minimum(rank // defaults.GPUS, self.jobs.hosts[job] - 1))

    def _trained(self, rows: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return self.effective[rows] + self.lost[rows] > 0

    def _outcomes(self) -> NDArray[np.str_]:
        outcomes = np.array(OUTCOMES, dtype="<U10")[self.jobs.outcome[self.attempts.job]]
        outcomes[~self.last] = "failed"
        outcomes[~self.last & (self.attempts.category == "preemption")] = "preempted"
        outcomes[self.running] = "running"
        return outcomes

    def _key(self, rows: Ints | None = None) -> dict[str, Any]:
        index = slice(None) if rows is None else rows
        return {
            "run_id": self._words(self.run_ids, self.attempts.job[index]),
            "attempt": self.attempts.number[index],
        }

    def _words(self, values: Any, index: Ints) -> Any:
        """A dictionary-encoded column."""
        return self.pa.DictionaryArray.from_arrays(self.pa.array(index.astype(np.int32)), values)

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
