"""Guard texts as torch prints them; causes.py of the integration tests produces them again."""

from __future__ import annotations

import pytest

from headway.compile.recompiles.guards import parse
from headway.compile.recompiles.kinds import KINDS

PAD = " " * 50
CALL = "  # y = work(x)  # job.py:22 in work"
STACK = '\nUser stack trace:\n  File "/a/job.py", line 22, in work\n    y = work(x)'
HINT = " (HINT: torch.compile considers integer attributes of the nn.Module to be static.)"
MODULE = (
    STACK + '\n  File "/v/site-packages/torch/nn/modules/dropout.py", line 73, in forward\n   x'
)
KEYS = "expected DispatchKeySet(CPU), actual DispatchKeySet(Meta)"


@pytest.mark.parametrize(
    ("reason", "kind", "source", "dim", "expected", "actual"),
    [
        ("0/0: tensor 'x' size mismatch at index 0. expected 4, actual 5",
         "size", "x", 0, "4", "5"),
        ("1/2: tensor 'd['a, b']' size mismatch at index 1. expected 4, actual 5",
         "size", "d['a, b']", 1, "4", "5"),
        ("0/0: tensor 'm._parameters['b']' size mismatch at index 0. expected 3, actual 4. "
         "Guard failed on a parameter, consider using", "parameter", "m._parameters['b']", 0,
         "3", "4"),
        ("0/0: tensor 'x' stride mismatch at index 1. expected 4, actual 1",
         "stride", "x", 1, "4", "1"),
        ("0/0: tensor 'x' dtype mismatch. expected Float, actual Double",
         "dtype", "x", None, "Float", "Double"),
        ("0/0: tensor 'x' rank mismatch. expected 1, actual 2", "rank", "x", None, "1", "2"),
        ("0/0: tensor 'x' requires_grad mismatch. expected requires_grad=1",
         "requires_grad", "x", None, "True", "False"),
        (f"0/0: tensor 'x' dispatch key set mismatch. {KEYS}", "dispatch", "x", None,
         "DispatchKeySet(CPU)", "DispatchKeySet(Meta)"),
        ("0/0: expected type of 'x' to be a tensor type, ' but found <class 'P'>",
         "tensor_type", "x", None, "<class 'P'>", ""),
        ("0/0: expected type of 'x' to be <class 'torch.Tensor'>, but found <class 'P'>",
         "tensor_type", "x", None, "<class 'P'>", ""),  # torch 2.15
        (f"0/0: k == 3{PAD}{CALL}{STACK}", "int", "k", None, "3", ""),
        (f"0/0: k == 4{CALL} (_dynamo/variables/tensor.py:2606 in evaluate_expr)",
         "pinned", "k", None, "4", ""),
        (f"0/0: k <= 4{CALL} (_dynamo/variables/tensor.py:2606 in evaluate_expr)",
         "pinned", "k", None, "", ""),
        ("0/0: k == 3", "int", "k", None, "3", ""),  # no remark, no way to tell
        (f"0/0: s.k == 1{PAD}{CALL}{HINT}{STACK}", "module_int", "s.k", None, "1", ""),
        (f"0/0: G['SCALE'] == -2{PAD}{CALL}{STACK}", "int", "G['SCALE']", None, "-2", ""),
        (f"0/0: d['lr'] == 1e-05{PAD}{CALL}{STACK}", "float", "d['lr']", None, "1e-05", ""),
        (f"0/0: k == 0.3{PAD}{CALL}{STACK}", "float", "k", None, "0.3", ""),
        (f"0/0: k == inf{PAD}{CALL}{STACK}", "float", "k", None, "inf", ""),
        (f"0/0: k == True{PAD}{CALL}{STACK}", "constant", "k", None, "True", ""),
        (f"0/0: k == 'a b'{PAD}{CALL}{STACK}", "constant", "k", None, "'a b'", ""),
        (f"0/0: m._modules['drop'].training == True{PAD}{CALL}{MODULE}",
         "training", "m._modules['drop'].training", None, "True", ""),
        (f"0/0: p.grad is None{PAD}{CALL}{STACK}", "none", "p.grad", None, "", ""),
        (f"0/0: m is not None{PAD}{CALL}{STACK}", "none", "m", None, "", ""),
        (f"0/0: len(xs) == 2{PAD}{CALL}{STACK}", "length", "xs", None, "2", ""),
        ("0/0: len(d) != 1", "keys", "d", None, "1", ""),
        (f"0/0: list(dict.keys(d))[0] == 'a'{PAD}{CALL}{STACK}", "keys", "d", None, "'a'", ""),
        (f"0/0: ___check_type_id(xs, 139), type=<class 'list'>{CALL}",
         "type", "xs", None, "<class 'list'>", ""),
        (f"0/0: ___check_obj_id(fn.__code__, 140), type=<class 'code'>{CALL}",
         "identity", "fn", None, "<class 'code'>", ""),
        ("0/0: GLOBAL_STATE changed: grad_mode ", "grad_mode", "grad_mode", None, "", ""),
        ("0/0: GLOBAL_STATE changed: autocast(cpu)_enabled ",
         "autocast", "autocast(cpu)_enabled", None, "", ""),
        ("0/0: GLOBAL_STATE changed: num_threads default_dtype ",
         "global_state", "num_threads, default_dtype", None, "", ""),
        ("0/0: ___check_torch_function_mode_stack()", "modes", "", None, "", ""),
        (f"0/1: 2 <= x.size()[0]{CALL}", "zero_one", "x", 0, "", ""),
        (f"0/1: 2 <= d['a b'].size()[1] <= 8{CALL}", "branch", "d['a b']", 1, "", ""),
        (f"0/1: (x.size()[0] % 4) == 0{CALL}", "branch", "x", 0, "", ""),
        ("0/0: Duplicate tensors found: [\"x\", \"y\"]", "alias", '["x", "y"]', None, "", ""),
        ("0/0: BACKEND_MATCH failure: torch.compile detected different backend callables.",
         "backend", "", None, "", ""),
        ("Unable to find recompilation reasons", "unknown", "", None, "", ""),
        ("", "unknown", "", None, "", ""),
        ("0/0: \x00 nothing like a guard == ", "unknown", "", None, "", ""),
    ],
)  # fmt: skip
def test_every_kind(
    reason: str, kind: str, source: str, dim: int | None, expected: str, actual: str
) -> None:
    guard = parse(reason)
    assert (guard.kind, guard.source, guard.dim) == (kind, source, dim)
    assert (guard.expected, guard.actual) == (expected, actual)
    assert guard.kind in KINDS


def test_two_sizes_that_were_equal_by_chance() -> None:
    guard = parse("0/0: y.size()[0] == x.size()[1]  # duck sizing added this equality because ...")
    assert (guard.kind, guard.source, guard.dim, guard.other) == ("duck", "y", 0, ("x", 1))


def test_the_line_is_the_users_own() -> None:
    guard = parse(f"0/0: m.training == True{PAD}{CALL}{MODULE}")
    assert guard.line == "/a/job.py:22"
    assert guard.text == "m.training == True"
