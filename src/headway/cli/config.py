"""Print every setting, its value, and where the value came from."""

from __future__ import annotations

import argparse
import json


def prepare_config(parser: argparse.ArgumentParser) -> None:
    """The flags of `headway config`."""
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
