"""Three compiled functions, each of which recompiles up to torch's limit: 21 times in all.

The last thing that changes is seen by no compile any more, only by the guard that failed.
Prints what torch itself advises, and how many graphs there are.
"""

from __future__ import annotations

from typing import Any

import torch

NAMES = ("age", "country", "device", "hour", "item", "query", "user")


def first(one: Any, offsets: Any) -> Any:
    return sum(value.sum() for value in one.values()) * offsets.sum()


def second(two: Any, starts: Any) -> Any:
    return sum(value.sum() for value in two.values()) * starts.sum()


def third(three: Any, ends: Any) -> Any:
    return sum(value.sum() for value in three.values()) * ends.sum()


def main() -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    calls = [torch.compile(function, backend="eager") for function in (first, second, third)]
    sizes = dict.fromkeys(NAMES, 4)
    for step in range(12):
        if 1 <= step <= len(NAMES):
            sizes[NAMES[step - 1]] = 4 + step
        given = {name: torch.ones(size) for name, size in sizes.items()}
        last = torch.ones(3 + max(step - len(NAMES), 0))
        for call in calls:
            (call(dict(given), last.clone()) * weight).backward()
        optimizer.step()
    from torch._dynamo import pgo

    print(pgo.render_code_state(pgo.get_code_state()))


if __name__ == "__main__":
    main()
