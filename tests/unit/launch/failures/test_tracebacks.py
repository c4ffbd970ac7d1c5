"""Blocks of Python tracebacks, complete and torn."""

from __future__ import annotations

from headway.launch.failures.log_lines import parse
from headway.launch.failures.model import Fact
from headway.launch.failures.tracebacks import MAX_OPEN_LINES, Tracebacks, looks_raised


def exceptions(text: str) -> list[Fact]:
    blocks = Tracebacks()
    for number, raw in enumerate(text.encode().splitlines(), 1):
        blocks.add_line(parse(raw), number)
    return blocks.flush()


def texts(text: str) -> list[str]:
    return [fact.text for fact in exceptions(text)]


def test_source_lines_are_no_news() -> None:
    facts = exceptions(
        "Traceback (most recent call last):\n"
        '  File "/a/b.py", line 3, in run\n'
        '    raise RuntimeError("CUDA out of memory")\n'
        "    ^^^^^^^^^^^^^\n"
        "KeyError: 'x'\n"
    )
    assert [fact.text for fact in facts] == ["KeyError: 'x'"]
    assert facts[0].line == 5 and facts[0].within.split() == ["/a/b.py:run"]


def test_a_chain_shares_its_number() -> None:
    facts = exceptions(
        'Traceback (most recent call last):\n  File "a.py", line 1, in f\nOSError: one\n\n'
        "During handling of the above exception, another exception occurred:\n\n"
        'Traceback (most recent call last):\n  File "a.py", line 2, in g\nValueError: two\n'
        'Traceback (most recent call last):\n  File "a.py", line 3, in h\nTypeError: three\n'
    )
    assert [fact.text for fact in facts] == ["OSError: one", "ValueError: two", "TypeError: three"]
    assert facts[0].chain == facts[1].chain != facts[2].chain


def test_a_worker_is_told_by_its_parent() -> None:
    outer, inner = exceptions(
        'Traceback (most recent call last):\n  File "a.py", line 1, in f\n'
        "KeyError: Caught KeyError in DataLoader worker process 0.\n"
        "Original Traceback (most recent call last):\n"
        '  File "d.py", line 9, in __getitem__\n    row["x"]\nKeyError: \'x\'\n'
    )
    assert outer.chain == inner.chain
    assert "DataLoader worker" in inner.within and inner.text == "KeyError: 'x'"


def test_ranks_may_be_mixed() -> None:
    facts = exceptions(
        "[rank0]: Traceback (most recent call last):\n"
        "[rank1]: Traceback (most recent call last):\n"
        '[rank0]:   File "a.py", line 1, in f\n'
        '[rank1]:   File "b.py", line 1, in g\n'
        "[rank1]: ValueError: of one\n"
        "[rank0]: TypeError: of zero\n"
    )
    assert {(fact.rank, fact.text) for fact in facts} == {
        (1, "ValueError: of one"),
        (0, "TypeError: of zero"),
    }


def test_a_prefix_is_learnt_from_the_first_line() -> None:
    assert texts(
        "ERROR 06-10 10:55:03 [core.py:459] EngineCore hit it: Traceback (most recent call last):\n"
        'ERROR 06-10 10:55:03 [core.py:459]   File "/v/e.py", line 56, in rpc\n'
        "ERROR 06-10 10:55:04 [core.py:459] RuntimeError: boom\n"
    ) == ["RuntimeError: boom"]


def test_lines_that_a_terminal_has_wrapped() -> None:
    assert texts(
        "Traceback (most recent call last):\n"
        '  File "/lib/dynamic_rendezvous.py", line 1255, i\n'
        "n num_nodes_waiting   \n"
        "    self.sync()\n"
        "torch.x.RendezvousConnectionError: failed\n"
    ) == ["torch.x.RendezvousConnectionError: failed"]


def test_a_box() -> None:
    facts = exceptions(
        "╭──── Traceback (most recent call last) ────╮\n"
        "│ /job/train.py:88 in main                  │\n"
        "│ ❱ 88 │   fit("
        "model)                   │\n"
        "╰───────────────────────────────────────────╯\n"
        "AttributeError: no fit\n"
    )
    assert [fact.text for fact in facts] == ["AttributeError: no fit"]
    assert facts[0].within.startswith("/job/train.py:main")


def test_a_message_that_begins_on_the_next_line() -> None:
    assert texts(
        'Traceback (most recent call last):\n  File "a.py", line 1, in f\n'
        "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\n"
        "RuntimeError: inner\n\nmore\n"
    ) == [
        "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised: "
        "RuntimeError: inner more"
    ]


def test_what_ends_no_process_is_a_warning() -> None:
    facts = exceptions(
        "Exception in thread Thread-3:\nTraceback (most recent call last):\n"
        '  File "a.py", line 1, in run\nConnectionResetError: [Errno 104]\n'
    )
    assert (facts[0].source, facts[0].level) == ("log", "warning")


def test_a_block_without_an_end_is_given_up() -> None:
    blocks = Tracebacks()
    blocks.add_line(parse(b"[rank1]: Traceback (most recent call last):"), 1)
    for number in range(MAX_OPEN_LINES + 2):
        blocks.add_line(parse(b"[rank0]: something else"), number)
    assert not blocks.open


def test_the_form_of_an_exception() -> None:
    assert looks_raised("torch.distributed.DistBackendError: NCCL")
    assert looks_raised("KeyboardInterrupt")
    assert not looks_raised("INFO: fine")
    assert not looks_raised("Epoch 3: loss 2")
