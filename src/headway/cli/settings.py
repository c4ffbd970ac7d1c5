"""`headway config` and `headway auto`: effective settings, and profiles of jobs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from headway.errors import UsageError

if TYPE_CHECKING:
    from headway.session.profile import JobProfile, ProfileStore

CONFIG_HELP = """Print every setting, its value, and the origin of the value."""

AUTO_HELP = """Show or delete what `headway run --auto` has learned about a job.

examples:
  headway auto show                    all jobs
  headway auto show train-3f2a91c0     one job: measurements, and disabled boosters with the reason
  headway auto show train --json       as JSON; the name suffices if only one job has it
  headway auto forget train-3f2a91c0   start over: the next run tries every booster again
"""


def prepare_config(parser: argparse.ArgumentParser) -> None:
    parser.description = CONFIG_HELP
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_config(args: argparse.Namespace) -> int:
    from headway import redact
    from headway.settings import resolve

    values = {key: (redact.data(value), origin) for key, (value, origin) in resolve().items()}
    if args.json:
        print(json.dumps({k: {"value": v, "from": o} for k, (v, o) in values.items()}, indent=1))
        return 0
    width = max(map(len, values))
    for key, (value, origin) in values.items():
        print(f"{key:<{width}}  {'-' if value is None else value!s:<24}  {origin}")
    return 0


def prepare_auto(parser: argparse.ArgumentParser) -> None:
    parser.description = AUTO_HELP
    parser.add_argument("what", choices=("show", "forget"), help="show or delete the profile")
    parser.add_argument(
        "job", metavar="JOB", nargs="?", help="job as listed by `headway auto show`"
    )
    parser.add_argument(
        "--runs", metavar="DIR", default="headway", help="folder that contains the runs (headway)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run_auto(args: argparse.Namespace) -> int:
    from headway.session.profile import ProfileStore

    runs = Path(args.runs)
    if not runs.is_dir():
        raise UsageError(
            f"there is no folder {runs}; give the folder that contains your runs with --runs",
            code="runs-folder-not-found",
        )
    store = ProfileStore(runs)
    if args.what == "forget":
        if not args.job:
            raise UsageError(
                "no job is given; `headway auto show` lists them", code="job-not-given"
            )
        job = _find_job(store, args.job)
        _forget_job(store, job)
        print(f"deleted: {job}")
        return 0
    profiles = [
        store.read_strict(job)
        for job in ([_find_job(store, args.job)] if args.job else store.jobs())
    ]
    if args.json:
        from headway.session.profile import to_dict

        contents = [to_dict(profile) for profile in profiles]
        print(json.dumps(contents[0] if args.job else contents, indent=1))
    elif args.job:
        _print_job(store, profiles[0])
    else:
        _print_jobs(store, profiles)
    return 0


def _find_job(store: ProfileStore, name: str) -> str:
    """The job with this id, or the only job with this name."""
    jobs = store.jobs()
    matching = [job for job in jobs if name in (job, job.rpartition("-")[0])]
    if name in matching or len(matching) == 1:
        return name if name in matching else matching[0]
    if matching:
        raise UsageError(
            f"{name} is the name of {len(matching)} jobs: {', '.join(matching)}",
            code="job-ambiguous",
        )
    jobs_text = f"; there are {', '.join(jobs)}" if jobs else f"; no profiles in {store.runs}"
    raise UsageError(f"there is no job {name}{jobs_text}", code="job-not-found", job=name)


def _forget_job(store: ProfileStore, job: str) -> None:
    """Also delete the learned sources of its name, unless another job has the same name."""
    from headway.compile.recompiles import learning

    name = job.rpartition("-")[0]
    try:
        store.forget(job)
        if all(other.rpartition("-")[0] != name for other in store.jobs()):
            (store.runs / learning.LEARNED_FOLDER / f"{name}.json").unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(
            f"{job} cannot be deleted: {store.root}: {error.strerror}", code="profile-not-deleted"
        ) from None


def _print_jobs(store: ProfileStore, profiles: list[JobProfile]) -> None:
    if not profiles:
        print(f"no profiles in {store.runs} yet; type: headway run --auto -- YOUR COMMAND")
    for profile in profiles:
        off = f"; off: {', '.join(profile.off)}" if profile.off else ""
        print(f"{profile.job}  {profile.runs} run(s), last {profile.last_run or 'none'}{off}")


def _print_job(store: ProfileStore, profile: JobProfile) -> None:
    from headway.session.profile import hang_limit

    print(f"{profile.job}: {' '.join(profile.words)}")
    print(f"  runs       {profile.runs}, last {profile.last_run or 'none'}")
    limit = hang_limit(profile.silence_s)
    if profile.silence_s is not None and limit is not None:
        print(
            f"  hang       after {limit:.0f} s; "
            f"the longest time without a step was {profile.silence_s:.1f} s"
        )
    for kind, baseline in profile.measured.items():
        text = ", ".join(f"{name} {value:.3f}" for name, value in baseline.values().items())
        print(f"  without    {kind}: {text or 'no measurements yet'}")
    for name, disabled in profile.off.items():
        print(f"  off        {name}: {disabled.why} ({disabled.versions})")
    print(f"  archives   {store.archives}")
    if (pruned := store.autotune(profile.job)).is_file():
        print(f"  autotune   {pruned}")
