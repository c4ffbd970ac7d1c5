"""Export a run or a store in the format of another tool.

for a run:
  headway export perfetto RUN -o trace.json.gz        open it at ui.perfetto.dev
  headway export openmetrics RUN                      its figures as metrics
  headway export csv RUN                              one row per segment
  headway export otlp RUN --endpoint http://host:4318 one trace, sent to an OpenTelemetry collector
  headway export wandb RUN --project night            also mlflow, tensorboard; uses their clients
for a run or a store:
  headway export prometheus STORE --textfile PATH     for the textfile collector of node_exporter
without a run:
  headway export prometheus-rules -o headway.yml      recording and alert rules
  headway export grafana -o headway.json              a dashboard to import

`headway export RUN --to FORMAT` is the same.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from headway.errors import UsageError
from headway.ledger.model import Ledger

if TYPE_CHECKING:
    from headway.fleet.store.parquet import Store
    from headway.fleet.store.postgres import Database
    from headway.schedule.publishers.file import MetricFamily as GaugeFamily

RUN_FORMATS = ("perfetto", "openmetrics", "csv", "otlp")
TRACKERS = ("wandb", "mlflow", "tensorboard")
STATIC_FORMATS = ("prometheus-rules", "grafana")
FORMATS = (*RUN_FORMATS, *TRACKERS, "prometheus", *STATIC_FORMATS)


def prepare(parser: argparse.ArgumentParser) -> None:
    from headway.cli.fleet import add_window_options

    parser.add_argument(
        "words", metavar="FORMAT RUN", nargs="+", help="format, and a run or a store"
    )
    parser.add_argument("--to", choices=FORMATS, help="format, instead of the first argument")
    parser.add_argument("-o", "--output", metavar="FILE", help="output file (standard output)")
    parser.add_argument("--textfile", metavar="FILE", help="like -o, and overwrite the file")
    parser.add_argument("--force", action="store_true", help="overwrite FILE")
    parser.add_argument("--endpoint", metavar="URL", help="otlp: send it to this collector")
    parser.add_argument("--project", metavar="NAME", help="wandb: project; mlflow: experiment")
    add_window_options(parser.add_argument_group("options for a store"))


def run(args: argparse.Namespace) -> int:
    form, path = _parse_words(args.to, args.words)
    target, force = _target(args), args.force or args.textfile is not None
    if form in TRACKERS:
        return _track(form, path, args)
    if form == "otlp" and args.endpoint:
        return _send(path, args.endpoint)
    if target is None:
        sys.stdout.writelines(_text(form, path, args))
        return 0
    from headway.storage.output_file import check_output, write_output

    check_output(target, force=force)
    text = "".join(_text(form, path, args))
    write_output(target, _compressed(text.encode("utf-8", "replace"), target), force=force)
    print(f"headway: wrote {target}")
    return 0


def _parse_words(to: str | None, words: list[str]) -> tuple[str, str]:
    """The format, and the run or store to export."""
    form, *rest = [*([to] if to else []), *words]
    if form not in FORMATS:
        raise UsageError(
            f"{form!r} is not a format; the formats are {', '.join(FORMATS)}",
            code="export-format-unknown",
        )
    if len(rest) != (0 if form in STATIC_FORMATS else 1):
        expected = "no argument" if form in STATIC_FORMATS else "one run or store"
        raise UsageError(
            f"`headway export {form}` takes {expected}; see `headway export --help`",
            code="export-arguments",
        )
    return form, rest[0] if rest else ""


def _target(args: argparse.Namespace) -> Path | None:
    named = args.textfile if args.textfile is not None else args.output
    return None if named in (None, "-") else Path(named)


def _text(form: str, path: str, args: argparse.Namespace) -> Iterable[str]:
    if form == "prometheus-rules":
        from headway.fleet import metrics

        return [Path(metrics.__file__).with_name("metrics_rules.yml").read_text()]
    if form == "grafana":
        from headway.fleet.grafana import dashboard

        return [dashboard()]
    if form == "prometheus" and (store := _store(path)) is not None:
        from headway.cli.fleet import metrics_text, parse_window

        return [metrics_text(store, parse_window(args))]
    return _run_text(_ledger(path), form)


def _store(path: str) -> Store | Database | None:
    from headway.cli.common import open_any
    from headway.fleet.store.parquet import Store

    store = open_any(path)
    return store if not isinstance(store, Store) or store.exists() else None


def _ledger(path: str) -> Ledger:
    from headway.run import load

    return load(path).ledger


def _run_text(ledger: Ledger, form: str) -> Iterator[str]:
    if form == "perfetto":
        from headway.export.perfetto import perfetto_lines

        return perfetto_lines(ledger)
    if form == "csv":
        from headway.export.csv import csv_lines

        return csv_lines(ledger)
    if form == "otlp":
        from headway.export.otlp import otlp_lines as lines

        return lines(ledger)
    from headway.export.openmetrics import Family, openmetrics_lines

    return openmetrics_lines(ledger, (Family(*family) for family in _eviction_cost(ledger)))


def _eviction_cost(ledger: Ledger) -> list[GaugeFamily]:
    """Metrics of the eviction cost; none for a run that has ended."""
    from headway.schedule.cost import from_ledger
    from headway.schedule.publishers.file import metric_families

    return (
        metric_families([({}, from_ledger(ledger))]) if ledger.running and ledger.attempts else []
    )


def _track(form: str, path: str, args: argparse.Namespace) -> int:
    from headway.export.trackers import export_to_tracker

    location = export_to_tracker(
        _ledger(path), form, args.output if form == "tensorboard" else args.project
    )
    print(f"headway: exported {path} to {form}: {location}")
    return 0


def _send(path: str, endpoint: str) -> int:
    from headway.export.otlp import send

    print(f"headway: sent {send(_ledger(path), endpoint)} spans to {endpoint}")
    return 0


def _compressed(content: bytes, target: Path) -> bytes:
    if target.suffix != ".gz":
        return content
    import gzip

    return gzip.compress(content, mtime=0)
