"""`headway config` and `headway auto`: settings in force, and profiles of jobs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from headway.errors import UsageError

if TYPE_CHECKING:
    from headway.session.profile import JobProfile, ProfileStore

CONFIG_HELP = """Print every setting, its value, and where the value came from."""

AUTO_HELP = """Show what `headway run --auto` has learned of a job, or forget it.

examples:
  headway auto show                    all jobs
  headway auto show train-3f2a91c0     one: what was measured, and which boosters are off and why
  headway auto show train --json       the same for programs; a name will do if it is one job's
  headway auto forget train-3f2a91c0   the next run learns anew, and tries every booster again
"""


def prepare_config(parser: argparse.ArgumentParser) -> None:
    """The flags of `headway config`."""
    parser.description = CONFIG_HELP
    parser.add_argument("--json", action="store_true", help="as JSON")


def run_config(args: argparse.Namespace) -> int:
    """Print them."""
    from headway import redact
    from headway.settings import resolve

    found = {key: (redact.data(value), origin) for key, (value, origin) in resolve().items()}
    if args.json:
        print(json.dumps({k: {"value": v, "from": o} for k, (v, o) in found.items()}, indent=1))
        return 0
    width = max(map(len, found))
    for key, (value, origin) in found.items():
        print(f"{key:<{width}}  {'-' if value is None else value!s:<24}  {origin}")
    return 0


def prepare_auto(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `headway auto`."""
    parser.description = AUTO_HELP
    parser.add_argument("what", choices=("show", "forget"), help="show or forget")
    parser.add_argument("job", metavar="JOB", nargs="?", help="as `headway auto show` names it")
    parser.add_argument("--runs", metavar="DIR", default="headway", help="where runs are; headway")
    parser.add_argument("--json", action="store_true", help="show it as JSON")


def run_auto(args: argparse.Namespace) -> int:
    """Find the job, and show it or forget it."""
    from headway.session.profile import ProfileStore

    runs = Path(args.runs)
    if not runs.is_dir():
        raise UsageError(
            f"there is no folder {runs}; name the one your runs are in with --runs",
            code="runs-folder-not-found",
        )
    shelf = ProfileStore(runs)
    if args.what == "forget":
        if not args.job:
            raise UsageError(
                "which job is to be forgotten? `headway auto show` lists them", code="job-not-given"
            )
        job = _find_job(shelf, args.job)
        _forget_job(shelf, job)
        print(f"forgotten: {job}")
        return 0
    found = [
        shelf.look(job) for job in ([_find_job(shelf, args.job)] if args.job else shelf.jobs())
    ]
    if args.json:
        from headway.session.profile import to_dict

        told = [to_dict(profile) for profile in found]
        print(json.dumps(told[0] if args.job else told, indent=1))
    elif args.job:
        _print_job(shelf, found[0])
    else:
        _print_jobs(shelf, found)
    return 0


def _find_job(shelf: ProfileStore, wanted: str) -> str:
    """The job of that id, or the only one of that name."""
    jobs = shelf.jobs()
    found = [job for job in jobs if wanted in (job, job.rpartition("-")[0])]
    if wanted in found or len(found) == 1:
        return wanted if wanted in found else found[0]
    if found:
        raise UsageError(
            f"{wanted} is the name of {len(found)} jobs: {', '.join(found)}", code="job-ambiguous"
        )
    known = f"; there are {', '.join(jobs)}" if jobs else f"; nothing was learned in {shelf.runs}"
    raise UsageError(f"there is no job {wanted}{known}", code="job-not-found", job=wanted)


def _forget_job(shelf: ProfileStore, job: str) -> None:
    """With it the sources that its name has learned, unless another job has that name too."""
    from headway.compile.recompiles import learning

    name = job.rpartition("-")[0]
    try:
        shelf.forget(job)
        if all(other.rpartition("-")[0] != name for other in shelf.jobs()):
            (shelf.runs / learning.LEARNED_FOLDER / f"{name}.json").unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(
            f"{job} cannot be forgotten: {shelf.root}: {error.strerror}", code="profile-not-deleted"
        ) from None


def _print_jobs(shelf: ProfileStore, found: list[JobProfile]) -> None:
    if not found:
        print(f"nothing was learned in {shelf.runs} yet; type: headway run --auto -- YOUR COMMAND")
    for one in found:
        off = f"; off: {', '.join(one.off)}" if one.off else ""
        print(f"{one.job}  {one.runs} run(s), last {one.last_run or 'none'}{off}")


def _print_job(shelf: ProfileStore, one: JobProfile) -> None:
    from headway.session.profile import hang_limit

    print(f"{one.job}: {' '.join(one.words)}")
    print(f"  runs       {one.runs}, the last one {one.last_run or 'none'}")
    limit = hang_limit(one.silence_s)
    if one.silence_s is not None and limit is not None:
        print(f"  hang       after {limit:.0f} s; its longest silence was {one.silence_s:.1f} s")
    for kind, measured in one.measured.items():
        told = ", ".join(f"{name} {value:.3f}" for name, value in measured.known().items())
        print(f"  without    {kind}: {told or 'nothing measured yet'}")
    for name, off in one.off.items():
        print(f"  off        {name}: {off.why} ({off.versions})")
    print(f"  archives   {shelf.archives}")
    if (pruned := shelf.autotune(one.job)).is_file():
        print(f"  autotune   {pruned}")
