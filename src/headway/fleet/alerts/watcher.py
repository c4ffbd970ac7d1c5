"""The loop that measures, stores and sends alerts; state is stored before anything is sent."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from headway.errors import HeadwayError, with_code
from headway.fleet.alerts import delivery
from headway.fleet.alerts.evaluate import acknowledge, evaluate
from headway.fleet.alerts.measure import measure_rules
from headway.fleet.alerts.rules import Rule, Rules
from headway.fleet.alerts.state import AlertStateStore, Notification, State
from headway.fleet.store.parquet import Store

CHANGE_INTERVAL_S = 600.0  # minimum time between two scans for changes, which are slow
MAX_TRIES = 3  # of `once`
WATCHER_TTL_S = 300.0  # after three missed rounds and this time, another watcher may take over


class AlertWatcher:
    """Measures, stores and sends the alerts of a store. `_keep` is the only writer of the state."""

    def __init__(
        self, store: Store, rules: Rules, every: float, log: Callable[[str], None]
    ) -> None:
        self._store, self._rules, self._every, self._log = store, rules, every, log
        self._state_store = AlertStateStore(store)
        self._state = State()
        self._measured_at: dict[str, float] = {}
        self._busy: set[str] = set()
        # An interrupt may arrive before a delivery is recorded: it is then sent again next time.
        self._threads: dict[str, threading.Thread] = {}
        self._unsaved = False  # the state is not stored yet, so nothing may be sent
        self._save_failed = False  # so that the failure is logged once
        self._tolerates_errors = False  # a store that cannot be written now may become writable
        self._results: queue.SimpleQueue[tuple[Notification, str, bool]] = queue.SimpleQueue()

    def once(self) -> tuple[list[Notification], list[str]]:
        """Run one round and try each notification a few times; return unsent ones and notes."""
        self._begin()
        try:
            notes = self._measure(time.time())
            while self._busy or self._has_retries():
                self._send(time.time(), MAX_TRIES)
                self._take(1.0)
        finally:
            self._end()
        return list(self._state.outbox), notes

    def forever(self) -> None:
        """Run until interrupted. The process may be killed at any time."""
        self._begin()
        self._tolerates_errors = True
        try:
            at = time.monotonic()
            while True:
                if time.monotonic() >= at:
                    self._measure(time.time())
                    at = time.monotonic() + self._every
                if self._unsaved:
                    self._save()
                self._send(time.time(), None)
                self._take(min(1.0, max(0.0, at - time.monotonic())))
        finally:
            self._end()

    def _begin(self) -> None:
        for channel in self._rules.channels.values():
            channel.check()
        self._state = self._state_store.claim(time.time())
        self._state, dropped = delivery.drop_unknown_receivers(self._state, self._rules.channels)
        for notification in dropped:
            self._log(
                with_code(
                    f"the channel {notification.receiver!r} no longer exists; "
                    f"{notification.id} is not sent",
                    code="notification-dropped",
                )
            )
        # Retry everything at once after a restart.
        now = time.time()
        outbox = tuple(
            replace(notification, tries=0, due=now) for notification in self._state.outbox
        )
        self._keep(replace(self._state, outbox=outbox))

    def _end(self) -> None:
        """Wait for running deliveries, which have time limits."""
        for thread in self._threads.values():
            thread.join()
        while not self._results.empty():
            self._take(0.0)
        self._state_store.save(self._state, None)

    def _keep(self, state: State) -> None:
        self._state, self._unsaved = state, True
        self._save()

    def _save(self) -> None:
        try:
            self._state_store.save(self._state, time.time() + 3 * self._every + WATCHER_TTL_S)
        except (HeadwayError, OSError) as error:
            if not self._tolerates_errors:
                raise
            if not self._save_failed:
                self._log(
                    with_code(
                        f"alerts cannot be stored, and nothing is sent until they are: {error}",
                        code="alerts-not-saved",
                    )
                )
            self._save_failed = True
        else:
            self._unsaved = self._save_failed = False

    def _measure(self, now: float) -> list[str]:
        rules = [rule for rule in self._rules.rules if self._is_due(rule, now)]
        samples, notes = measure_rules(self._store, rules, now)
        for note in notes:
            self._log(note)
        self._measured_at.update({rule.name: now for rule in rules})
        acks = self._acks()
        state = acknowledge(self._state, acks)
        evaluation = evaluate(self._rules, samples, state, now)
        for notification in evaluation.notifications:
            self._log(str(notification.message["text"]))
        self._keep(State(evaluation.alerts, (*state.outbox, *evaluation.notifications)))
        if not self._unsaved:
            # reading an acknowledgement twice is harmless
            with contextlib.suppress(HeadwayError, OSError):
                for alert in acks:
                    self._state_store.delete_ack(alert)
        return notes

    def _acks(self) -> dict[str, str | None]:
        try:
            return self._state_store.acks()
        except (HeadwayError, OSError) as error:
            if not self._tolerates_errors:
                raise
            self._log(
                with_code(
                    f"acknowledgements cannot be read: {error}", code="acknowledgements-unreadable"
                )
            )
            return {}

    def _is_due(self, rule: Rule, now: float) -> bool:
        since = now - self._measured_at.get(rule.name, 0.0)
        return rule.kind != "change" or not 0 <= since < CHANGE_INTERVAL_S

    def _send(self, now: float, tries: int | None) -> None:
        for notification in (
            [] if self._unsaved else delivery.due_notifications(self._state, now, self._busy)
        ):
            if tries is None or notification.tries < tries:
                self._busy.add(notification.receiver)
                thread = threading.Thread(target=self._try, args=(notification,), daemon=True)
                thread.start()
                self._threads[notification.receiver] = thread

    def _try(self, notification: Notification) -> None:
        try:
            self._results.put(
                (
                    notification,
                    self._rules.channels[notification.receiver].send(notification.message),
                    True,
                )
            )
        except HeadwayError as error:
            self._results.put((notification, str(error), False))
        except Exception as error:  # a receiver must not stop the watcher
            self._results.put((notification, f"{type(error).__name__}: {error}", False))

    def _take(self, wait: float) -> None:
        """Record the result of a delivery."""
        try:
            notification, text, delivered = self._results.get(timeout=wait)
        except queue.Empty:
            return
        self._busy.discard(notification.receiver)
        if text and delivered:
            self._log(
                with_code(
                    f"{notification.receiver!r} accepted {notification.id} in part: {text}",
                    code="notification-partly-refused",
                )
            )
        elif text:
            self._log(
                with_code(
                    f"{notification.receiver!r} did not accept {notification.id}: {text}",
                    code="notification-refused",
                )
            )
        if delivered:
            self._keep(delivery.mark_delivered(self._state, notification))
        else:
            self._keep(delivery.mark_failed(self._state, notification, text, time.time()))

    def _has_retries(self) -> bool:
        """Whether `once` has notifications left to try."""
        heads: dict[str, Notification] = {}
        for notification in self._state.outbox:
            heads.setdefault(notification.receiver, notification)
        return any(notification.tries < MAX_TRIES for notification in heads.values())
