"""Where notifications go: each kind is one file, and `send` raises Refused if it was not taken."""

from __future__ import annotations

from headway.fleet.alerts.channels.command import Command
from headway.fleet.alerts.channels.email import Email
from headway.fleet.alerts.channels.webhook import Webhook

Channel = Webhook | Email | Command
CHANNEL_KINDS: dict[str, type[Webhook] | type[Email] | type[Command]] = {
    "webhook": Webhook,
    "email": Email,
    "command": Command,
}
