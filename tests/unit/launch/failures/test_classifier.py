"""From facts to a verdict, and which rank a timeout points at."""

from __future__ import annotations

import pytest

from headway.launch.failures import Fact, classify, failed
from headway.launch.failures.kernel_log import NO_OOM
from tests.support import Golden

WATCHDOG = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5) ran for 6 ms"


def exit_(code: int, **more: object) -> Fact:
    return Fact(source="exit", code=code, **more)  # type: ignore[arg-type]


def raised(text: str, **more: object) -> Fact:
    return Fact(source="exception", text=text, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "category", "confidence"),
    [
        (-9, "host_oom", "low"),
        (137, "host_oom", "low"),
        (-15, "unknown", "low"),
        (143, "unknown", "low"),
        (-11, "native_crash", "medium"),
        (139, "native_crash", "medium"),
        (134, "native_crash", "medium"),
        (-6, "native_crash", "medium"),
        (130, "user_cancel", "low"),
        (2, "user_code", "low"),
        (1, "unknown", "low"),
    ],
)
def test_an_exit_code_alone(code: int, category: str, confidence: str) -> None:
    verdict = classify([exit_(code)])
    assert (verdict.category, verdict.confidence) == (category, confidence)


def test_nothing_failed() -> None:
    assert not failed([exit_(0)])
    assert not failed([])
    assert classify([]).category == "unknown"


def test_evidence_of_an_exit_code(golden: Golden) -> None:
    """A SIGTERM names both possible causes."""
    uncounted = Fact(source="kernel", text=NO_OOM)
    cases = [[exit_(code)] for code in (-15, -9, -11, 130, 2, 1)] + [[exit_(-9), uncounted]]
    golden("evidence.txt", "".join(f"{classify(facts).evidence}\n" for facts in cases))


def test_a_kill_that_the_kernel_did_not_count() -> None:
    verdict = classify([exit_(-9), Fact(source="kernel", text=NO_OOM)])
    assert (verdict.category, verdict.retry) == ("unknown", "bounded")
    assert verdict.evidence != classify([exit_(-9)]).evidence
    counted = Fact(source="kernel", text="the kernel counted 1 OOM kill(s) in this job")
    assert classify([exit_(-9), counted]).category == "host_oom"
    assert classify([exit_(-9), counted]).confidence == "high"


def test_the_order_of_evidence() -> None:
    facts = [
        raised("ValueError: something"),
        Fact(source="kernel", text="NVRM: Xid (PCI:0000:5e:00): 79, GPU has fallen off the bus."),
        Fact(source="scheduler", text="Slurm job 7 ended as NODE_FAIL"),
        exit_(1),
    ]
    assert classify(facts).category == "node_failure"
    assert classify([*facts[:2], facts[3]]).category == "gpu_hardware"
    assert classify([facts[0], facts[3]]).category == "user_code"


def test_a_time_limit_comes_to_a_job_that_is_broken_already() -> None:
    limit = Fact(source="scheduler", text="Slurm job 7 ended as TIMEOUT", at=5000.0)
    assert classify([limit]).category == "time_limit"
    assert classify([raised("KeyError: 'x'", at=100.0), limit]).category == "user_code"
    assert classify([Fact(source="log", text=WATCHDOG, at=9.0), limit]).category == "comm_timeout"


def test_the_first_across_ranks() -> None:
    facts = [
        raised("ValueError: late", rank=0, at=20.0, file="0.log", line=9),
        raised("KeyError: 'first'", rank=3, at=10.0, file="3.log", line=900),
    ]
    verdict = classify(facts)
    assert (verdict.rank, verdict.evidence) == (3, "KeyError: 'first'")


def test_a_timeout_is_a_symptom_of_another_ranks_exception() -> None:
    facts = [
        Fact(source="log", text=WATCHDOG, rank=0, at=1.0),
        raised("torch.OutOfMemoryError: CUDA out of memory", rank=2, at=2.0),
        raised("ConnectionResetError: [Errno 104] Connection reset by peer", rank=1, at=0.5),
    ]
    verdict = classify(facts)
    assert (verdict.category, verdict.rank) == ("gpu_oom", 2)
    assert {other.role for other in verdict.others} == {"symptom"}
    assert {other.category for other in verdict.others} == {"comm_timeout", "network"}


def test_of_a_chain_the_first_that_says_something() -> None:
    chain = [
        raised("KeyError: 'a'", chain=1, file="f", line=1),
        raised("OSError: [Errno 28] No space left on device", chain=1, file="f", line=5),
        raised("RuntimeError: could not save", chain=1, file="f", line=9),
    ]
    assert classify(chain).category == "disk_full"


def test_an_error_that_the_job_went_on_after() -> None:
    early = raised("ModuleNotFoundError: No module named 'apex'", file="f", line=5, after=50)
    late = raised("IndexError: list index out of range", file="f", line=90, after=0)
    assert classify([early, late]).category == "user_code"
    assert classify([early]).category == "environment"


def test_an_owner_may_be_sharper_than_its_category() -> None:
    verdict = classify([raised("RuntimeError: CUDA error: device-side assert triggered")])
    assert (verdict.category, verdict.owner, verdict.retry) == ("cuda_fault", "user", "no")
    verdict = classify([raised("RuntimeError: CUDA error: an illegal memory access")])
    assert (verdict.category, verdict.owner, verdict.retry) == (
        "cuda_fault",
        "ambiguous",
        "bounded",
    )


def test_what_a_rank_killed_long_after_the_first_end_says() -> None:
    facts = [exit_(1, rank=1, at=100.0), exit_(-9, rank=0, at=131.0), exit_(-15, rank=2, at=131.0)]
    verdict = classify(facts)
    assert (verdict.category, verdict.rank) == ("unknown", 1)
    assert classify([exit_(1, rank=1, at=100.0), exit_(-11, rank=0, at=100.5)]).rank == 0


def test_a_place_sharpens_a_vague_exception() -> None:
    inside = "/venv/torch/_inductor/ir.py:get_numel"
    assert classify([raised("AttributeError: 'NoneLayout'", within=inside)]).category == "compile"
    assert classify([raised("AttributeError: 'NoneLayout'")]).category == "user_code"
    worker = "/job/data.py:__getitem__ DataLoader worker"
    assert classify([raised("KeyError: 'caption'", within=worker)]).category == "data_pipeline"
    saving = "/venv/torch/serialization.py:_open_zipfile_writer"
    full = raised("RuntimeError: File a.pt cannot be opened.", within=saving)
    assert classify([full]).category == "disk_full"


def test_the_evidence_is_one_line_of_bounded_length() -> None:
    verdict = classify([raised("ValueError: a\nb" + "x" * 1000)])
    assert verdict.evidence.startswith("ValueError: a bx") and len(verdict.evidence) == 300


def test_nothing_to_go_by_but_words_of_a_launcher() -> None:
    facts = [Fact(source="log", text="Sending process 9 closing signal SIGTERM")]
    assert failed(facts)
    assert classify(facts).category == "unknown"


def test_a_program_that_ran_had_its_container() -> None:
    image = Fact(source="k8s", text="Warning Failed kubelet Error: ErrImagePull")
    assert classify([image]).category == "platform_start"
    assert classify([image, raised("KeyError: 'x'")]).category == "user_code"


def test_a_source_that_is_not_known() -> None:
    assert classify([Fact(source="hang", text="rank 3 made no step")]).category == "hang"


def test_a_warning_alone_is_no_failure() -> None:
    assert not failed([Fact(source="log", text="Connection reset by peer", level="warning")])


def test_an_exit_without_a_word_explains_what_others_complain_of() -> None:
    lost = raised("RuntimeError: Connection closed by peer [127.0.0.1]:31133", rank=0)
    verdict = classify([lost, exit_(1, rank=0), exit_(3, rank=1)])
    assert (verdict.category, verdict.rank) == ("unknown", 1)
    assert classify([lost, exit_(1, rank=0)]).category == "network"


TIMED_OUT = "[Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=51) timed out"


def test_the_one_that_says_nothing() -> None:
    facts = [
        Fact(source="log", text=TIMED_OUT.format(rank), rank=rank, level="error")
        for rank in (0, 1, 2, 4)
    ]
    assert classify(facts).rank == 3


def test_the_one_that_stayed_behind() -> None:
    facts = [
        Fact(
            source="log",
            text=f"{TIMED_OUT.format(rank)} last enqueued NCCL work: {40 if rank == 2 else 53}",
            rank=rank,
        )
        for rank in range(5)
    ]
    assert classify(facts).rank == 2


def test_the_one_that_is_named() -> None:
    text = (
        "Received a dump signal due to a collective timeout from rank 18 and we will try our best"
    )
    facts = [
        Fact(source="log", text=TIMED_OUT.format(1), rank=1),
        Fact(source="log", text=text, rank=3),
    ]
    assert classify(facts).rank == 18
