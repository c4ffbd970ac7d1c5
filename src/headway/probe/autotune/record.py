"""Journal events of tunings, bounded in size and number; what exceeds the limits is summed up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headway.probe.autotune.kernel_identity import config_text
from headway.probe.host_facts import tuning_facts
from headway.probe.recorder import recorder

MAX_KERNELS = 2000
MAX_KEYS = 300  # per kernel
MAX_CONFIGS = 2000  # per kernel
MAX_TIMINGS = 400_000  # of all kernels: about 8 MB
MAX_SUMMED = 100  # keys over the limits per line


class Timing(NamedTuple):
    """A config, the time of the kernel (None if it failed), and the time of the benchmark."""

    config: dict[str, Any]
    ms: float | None
    seconds: float | None = None


class KernelInfo(NamedTuple):
    """The fields that describe a kernel."""

    kind: str
    id: str
    name: str
    where: str = ""
    names: Sequence[str] = ()  # names of the values of its key


@dataclass
class _KernelState:
    configs: dict[str, int] = field(default_factory=dict)
    keys: int = 0
    more: int = 0
    more_seconds: float = 0.0


class Tunings:
    """The kernels and keys that were recorded."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.pid = recorder.pid
        self.kernels: dict[tuple[str, str], _KernelState] = {}
        self.timings = 0

    def record(
        self,
        kernel: KernelInfo,
        key: Sequence[Any],
        rest: str,
        timings: Sequence[Timing],
        *,
        seconds: float,
        offered: int,
        compiled: float | None = None,
        taken: dict[str, Any] | None = None,
    ) -> None:
        """Record a key of a kernel; `taken`: the config used without a benchmark."""
        recorder.start()
        if self.pid != recorder.pid:  # forked: another journal
            self._reset()
        state = self._kernel(kernel, [timing.config for timing in timings])
        if state is None:
            return
        if state.keys >= MAX_KEYS or self.timings + len(timings) > MAX_TIMINGS:
            self._sum_up(kernel, state, seconds)
            return
        state.keys += 1
        self.timings += len(timings)
        fields: dict[str, Any] = {"kernel": kernel.id, "kind": kernel.kind, "key": list(key)}
        fields |= {"rest": rest, "of": offered, "seconds": round(seconds, 6)}
        if compiled is not None:
            fields["compiled"] = round(compiled, 6)
        if taken is not None:
            fields["taken"] = taken
        if timings:
            fields["c"] = [state.configs[config_text(timing.config)] for timing in timings]
            fields["ms"] = [_number(timing.ms) for timing in timings]
            if any(timing.seconds is not None for timing in timings):
                fields["s"] = [_number(timing.seconds) for timing in timings]
        recorder.emit("autotune", **fields)

    def _kernel(self, kernel: KernelInfo, configs: Sequence[dict[str, Any]]) -> _KernelState | None:
        """Record the kernel and its new configs, before events that refer to them."""
        state = self.kernels.get((kernel.kind, kernel.id))
        if state is None and len(self.kernels) >= MAX_KERNELS:
            return None
        by_name = {config_text(config): config for config in configs}
        new = {name: by_name[name] for name in by_name if not state or name not in state.configs}
        if state is not None and not new:
            return state
        state = state or self.kernels.setdefault((kernel.kind, kernel.id), _KernelState())
        if len(state.configs) + len(new) > MAX_CONFIGS:
            state.keys = MAX_KEYS  # from now on, only its times are recorded
            return state
        first = len(state.configs)
        state.configs.update({name: first + number for number, name in enumerate(new)})
        fields: dict[str, Any]
        fields = {"kernel": kernel.id, "kind": kernel.kind, "name": kernel.name[:200]}
        fields |= {"where": kernel.where[-300:], "names": list(kernel.names)}
        fields |= {"first": first, "configs": [*new.values()], **tuning_facts()}
        recorder.emit("autotune_kernel", **fields)
        return state

    def _sum_up(self, kernel: KernelInfo, state: _KernelState, seconds: float) -> None:
        state.more += 1
        state.more_seconds += seconds
        if state.more >= MAX_SUMMED:
            self._emit_sum(kernel.kind, kernel.id, state)

    def _emit_sum(self, kind: str, kernel: str, state: _KernelState) -> None:
        more, state.more = state.more, 0
        seconds, state.more_seconds = state.more_seconds, 0.0
        recorder.emit("autotune", kernel=kernel, kind=kind, more=more, seconds=round(seconds, 6))

    def finish(self) -> None:
        """Record the remaining sums at the end of the process."""
        for (kind, kernel), state in self.kernels.items():
            if state.more:
                self._emit_sum(kind, kernel, state)


def _number(value: Any) -> float | None:
    """Round to six digits; None if the config failed."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return float(f"{number:.6g}") if math.isfinite(number) else None


tunings = Tunings()
recorder.at_end.append(tunings.finish)
