"""What trainers and launchers record of themselves, as they really wrote it.

torchelastic: a real torchrun of torch 2.13 with `--event-log-handler console`, two ranks of which
one failed once (torch/distributed/elastic/events/api.py and agent/server/api.py, _construct_event).
torchtitan 0.3.0: its own structured logger, with the spans of its trainer (observability/
structured_logger/jsonl_handler.py, trainer.py); two ranks, killed after step 6, resumed from 4.
nv-one-logger 2.3.1: its FileExporter (exporter/base_json_exporter.py, its spans in
training_telemetry/api/spans.py).
ml-goodput-measurement 0.2.3: its GoodputRecorder (src/goodput.py); a restart from step 3.
NVRx: the fields of NVRxCycleInfo, as NVIDIA/nvidia-resiliency-ext,
src/nvidia_resiliency_ext/fault_tolerance/cycle_info_writer.py writes them.
"""

from __future__ import annotations

import json

import pytest

from headway.errors import UsageError
from headway.fleet import importers
from headway.units import NS
from tests.support import has_code
from tests.unit.fleet.importers.ledgers import (
    SAMPLES,
    categories,
    import_ledgers,
    outcomes,
    sample,
    seconds,
    source,
)

pytestmark = pytest.mark.timeout(60)


def test_torchelastic_restarts_are_attempts() -> None:
    (run,) = import_ledgers("torchelastic", *sample("torchelastic.txt")).values()
    assert run.run == "night-7" and outcomes(run) == ["failed", "completed"]
    assert [attempt.world for attempt in run.attempts] == [2, 2]
    assert run.buckets.keys() == {"start.launcher_init", "recover.launcher_init", "unknown"}


def test_torchelastic_events_need_a_time() -> None:
    lines = (SAMPLES / "torchelastic.txt").read_text().splitlines()
    bare = source("\n".join(line.partition(" ")[2] for line in lines))
    with pytest.raises(UsageError, check=has_code("record-without-times")):
        import_ledgers("torchelastic", bare)
    stamped = [json.loads(line.partition(" ")[2]) for line in lines]
    for index, event in enumerate(stamped):
        event["timestamp"] = 1_794_805_200_000 + 1000 * index
    (run,) = import_ledgers("torchelastic", source("\n".join(map(json.dumps, stamped)))).values()
    assert outcomes(run) == ["failed", "completed"]


def test_torchtitan_steps_that_are_made_again_were_lost() -> None:
    (run,) = import_ledgers("torchtitan", *sample("torchtitan")).values()
    assert outcomes(run) == ["failed", "completed"]
    spans = [(attempt.first_step, attempt.last_step) for attempt in run.attempts]
    assert spans == [(1, 6), (5, 8)] and run.steps == 8
    assert [attempt.world for attempt in run.attempts] == [2, 2]
    assert {
        "start.process_group_init",
        "start.train_module_creation",
        "start.checkpoint_load",
        "train.effective",
        "failure.lost_training",
        "waste.data_stall",
        "waste.checkpoint_block",
        "recover.downtime",
        "recover.checkpoint_load",
    } <= run.buckets.keys()
    assert run.time_to_start is not None and len(run.time_to_recover) == 1


def test_torchtitan_with_a_torn_line() -> None:
    whole = sample("torchtitan")
    torn = [one._replace(text=one.text[:-40]) for one in whole]
    (run,) = import_ledgers("torchtitan", *torn).values()
    assert import_ledgers("torchtitan", *whole).keys() == {run.run}
    assert outcomes(run) == ["failed", "running"]  # its last step has no end any more


def test_one_logger_spans() -> None:
    (run,) = import_ledgers("one_logger", *sample("one_logger.jsonl")).values()
    assert run.run == "night-7" and outcomes(run) == ["completed"]
    assert run.attempts[0].world == 4
    assert seconds(run) == {
        "start.process_group_init": 0.020,
        "start.train_module_creation": 0.047,
        "start.preproc_creation": 0.011,
        "start.checkpoint_load": 0.024,
        "train.effective": 0.159,
        "waste.checkpoint_block": 0.031,
        "waste.evaluation": 0.020,
        "unknown": 0.003,
    }


def test_one_logger_of_a_process_that_did_not_say_its_end() -> None:
    text = (SAMPLES / "one_logger.jsonl").read_text().splitlines(keepends=True)
    (run,) = import_ledgers("one_logger", source("".join(text[:14]))).values()
    assert outcomes(run) == ["running"] and "train.effective" in run.buckets


def test_ml_goodput_restarts_are_attempts() -> None:
    (run,) = import_ledgers("ml_goodput", *sample("ml_goodput.jsonl")).values()
    assert run.run == "llm-7b" and outcomes(run) == ["failed", "completed"]
    assert seconds(run) == {
        "start.device_init": 10.0,
        "start.train_module_creation": 10.0,
        "start.get_first_batch_data": 3.0,
        "train.effective": 74.0,
        "failure.lost_training": 30.0,
        "recover.downtime": 16.0,
        "recover.device_init": 5.0,
        "recover.train_module_creation": 10.0,
        "waste.blocked": 6.0,
        "unknown": 6.0,
    }
    assert run.time_to_start == 24 * NS and run.time_to_recover == (32 * NS,)


def test_ml_goodput_as_cloud_logging_gives_it() -> None:
    lines = (SAMPLES / "ml_goodput.jsonl").read_text().splitlines()
    entries = [{"insertId": str(i), "jsonPayload": json.loads(one)} for i, one in enumerate(lines)]
    told = import_ledgers("ml_goodput", source(entries))
    assert told == import_ledgers("ml_goodput", *sample("ml_goodput.jsonl"))


def cycle(attempt: int, number: int, begin: str, end: str) -> dict[str, object]:
    return {
        "job_id": "812",
        "attempt_index": attempt,
        "cycle_number": number,
        "cycle_start_time": f"2026-11-16T05:{begin}.250000Z",
        "cycle_end_time": f"2026-11-16T05:{end}.250000Z" if end else "",
        "cycle_log_file": "",
        "active_nodes": "gpu[01-04]",
        "standby_nodes": "gpu05",
        "active_ranks": "0-3",
        "generation": 1,
    }


def test_nvrx_cycles_are_attempts() -> None:
    files = [
        source(cycle(0, 0, "00:00", "10:00")),
        source(cycle(1, 0, "20:00", "")),
        source(cycle(0, 1, "10:30", "15:00")),
    ]
    collected_at = 1_794_805_200.25 + 1500
    (run,) = import_ledgers(
        "nvrx", *(one._replace(collected_at=collected_at) for one in files)
    ).values()
    assert run.run == "812" and outcomes(run) == ["failed", "failed", "running"]
    assert categories(run) == [(0, "unknown"), (1, "unknown")]
    assert seconds(run) == {"unknown": 600.0 + 270.0 + 300.0, "recover.downtime": 330.0}
    assert [rank.hosts for rank in run.ranks] == [(f"gpu0{n}",) for n in (1, 2, 3, 4)]


def test_what_nobody_knows_is_a_sentence() -> None:
    for text in ("", "hello", "{}", "[]", "{", '{"kind": "Deployment"}', "a|b\n1|2"):
        with pytest.raises(UsageError, check=has_code("record-not-recognized")):
            importers.detect(source(text))
    with pytest.raises(UsageError, check=has_code("reader-unknown")):
        importers.load_importer("pbs")
