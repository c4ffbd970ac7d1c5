"""Whatever torch allows comes back bit for bit, or an error says why it cannot be saved."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.errors import UsageError
from tests.integration.checkpointed.server import ask
from tests.support import examples, lazy

if TYPE_CHECKING:
    from tests.random_states import StateSpec

from_store = lazy("headway.checkpoint.restore:from_store")
StateTree = lazy("headway.checkpoint.state_tree:StateTree")
random_states = lazy("tests.random_states")
saved = lazy("tests.unit.checkpoint.test_state:saved")
packed = lazy("tests.integration.checkpointed.round_trip:packed")

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
]
CANNOT_BE_SAVED = ("names-collide", "keys-equal-as-text")
states = st.deferred(lambda: random_states.states())
slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@settings(max_examples=examples(120), deadline=None, suppress_health_check=slow)
@given(states, st.booleans())
def test_a_random_state_comes_back_bit_for_bit(spec: StateSpec, fresh: bool) -> None:
    """`fresh`: into optimizers that have made no step yet."""
    unstepped = {name: replace(one, steps=0) for name, one in spec.optimizers.items()}
    other = replace(spec, optimizers=unstepped) if fresh else spec
    there, back = random_states.build(spec, 1), random_states.build(other, 2)
    wanted = random_states.contents(there, per_rank=True)
    with tempfile.TemporaryDirectory() as folder:
        try:
            saved(Path(folder), StateTree(there.parts, there.per_rank, 0))
        except UsageError as error:
            assert error.code in CANNOT_BE_SAVED
            return
        from_store(folder, StateTree(back.parts, back.per_rank, 0), None)
    assert not random_states.difference(wanted, random_states.contents(back, per_rank=True))


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 3), (3, 2)])
def test_on_any_number_of_ranks(before: int, after: int) -> None:
    """Each rank has the same, or other children of each module, as pipeline stages have."""

    @settings(max_examples=examples(40), deadline=None, suppress_health_check=slow)
    @given(st.lists(states, min_size=1, max_size=6))
    def check(specs: list[StateSpec]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            told = {"folder": folder, "before": before, "after": after}
            wrong = ask("round_trip:run", specs=packed(specs), **told)
        assert not wrong, "\n".join(wrong)

    check()
