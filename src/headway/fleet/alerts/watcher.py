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

CHANGE_INTERVAL_S = 600.0  # between two looks for changes, which take long
MAX_TRIES = 3  # of one that looks once
WATCHER_TTL_S = 300.0  # beyond three rounds: then others may take over


class AlertWatcher:
    """One who watches a store; all of the state goes through `_keep`."""

    def __init__(
        self, store: Store, rules: Rules, every: float, say: Callable[[str], None]
    ) -> None:
        self._store, self._rules, self._every, self._say = store, rules, every, say
        self._kept = AlertStateStore(store)
        self._state = State()
        self._looked: dict[str, float] = {}
        self._busy: set[str] = set()
        # An interrupt may come before one is noted as done: then it is sent again, by the next.
        self._threads: dict[str, threading.Thread] = {}
        self._unkept = False  # the state is newer than what is in the store: nothing may be sent
        self._told = False  # that it cannot be written
        self._patient = False  # a store that cannot be written now may be later
        self._results: queue.SimpleQueue[tuple[Notification, str, bool]] = queue.SimpleQueue()

    def once(self) -> tuple[list[Notification], list[str]]:
        """One look, and each notification tried a few times; what was not taken, or not asked."""
        self._begin()
        try:
            notes = self._look(time.time())
            while self._busy or self._left():
                self._send(time.time(), MAX_TRIES)
                self._take(1.0)
        finally:
            self._end()
        return list(self._state.outbox), notes

    def forever(self) -> None:
        """Until it is interrupted; it may be killed at any instant."""
        self._begin()
        self._patient = True
        try:
            at = time.monotonic()
            while True:
                if time.monotonic() >= at:
                    self._look(time.time())
                    at = time.monotonic() + self._every
                if self._unkept:
                    self._save()
                self._send(time.time(), None)
                self._take(min(1.0, max(0.0, at - time.monotonic())))
        finally:
            self._end()

    def _begin(self) -> None:
        for channel in self._rules.channels.values():
            channel.check()
        self._state = self._kept.claim(time.time())
        self._state, dropped = delivery.drop_unknown_receivers(self._state, self._rules.channels)
        for one in dropped:
            self._say(
                with_code(
                    f"there is no channel {one.to!r} any more, so {one.id} is not sent to it",
                    code="notification-dropped",
                )
            )
        # Whoever starts it again wants it tried now.
        now = time.time()
        fresh = tuple(replace(one, tries=0, due=now) for one in self._state.outbox)
        self._keep(replace(self._state, outbox=fresh))

    def _end(self) -> None:
        """What is on its way is waited for: channels have time limits."""
        for thread in self._threads.values():
            thread.join()
        while not self._results.empty():
            self._take(0.0)
        self._kept.save(self._state, None)

    def _keep(self, state: State) -> None:
        self._state, self._unkept = state, True
        self._save()

    def _save(self) -> None:
        try:
            self._kept.save(self._state, time.time() + 3 * self._every + WATCHER_TTL_S)
        except (HeadwayError, OSError) as error:
            if not self._patient:
                raise
            if not self._told:
                self._say(
                    with_code(
                        f"alerts cannot be kept, and nothing is sent until they are: {error}",
                        code="alerts-not-saved",
                    )
                )
            self._told = True
        else:
            self._unkept = self._told = False

    def _look(self, now: float) -> list[str]:
        asked = [rule for rule in self._rules.rules if self._is_due(rule, now)]
        answers, notes = measure_rules(self._store, asked, now)
        for note in notes:
            self._say(note)
        self._looked.update({rule.name: now for rule in asked})
        acks = self._acks()
        state = acknowledge(self._state, acks)
        found = evaluate(self._rules, answers, state, now)
        for one in found.notifications:
            self._say(str(one.message["text"]))
        self._keep(State(found.alerts, (*state.outbox, *found.notifications)))
        if not self._unkept:
            with contextlib.suppress(HeadwayError, OSError):  # read twice, it does no harm
                for alert in acks:
                    self._kept.forget(alert)
        return notes

    def _acks(self) -> dict[str, str | None]:
        try:
            return self._kept.acks()
        except (HeadwayError, OSError) as error:
            if not self._patient:
                raise
            self._say(
                with_code(
                    f"acknowledgements cannot be read: {error}", code="acknowledgements-unreadable"
                )
            )
            return {}

    def _is_due(self, rule: Rule, now: float) -> bool:
        since = now - self._looked.get(rule.name, 0.0)
        return rule.kind != "change" or not 0 <= since < CHANGE_INTERVAL_S

    def _send(self, now: float, tries: int | None) -> None:
        for one in [] if self._unkept else delivery.due_notifications(self._state, now, self._busy):
            if tries is None or one.tries < tries:
                self._busy.add(one.to)
                thread = threading.Thread(target=self._try, args=(one,), daemon=True)
                thread.start()
                self._threads[one.to] = thread

    def _try(self, one: Notification) -> None:
        try:
            self._results.put((one, self._rules.channels[one.to].send(one.message), True))
        except HeadwayError as error:
            self._results.put((one, str(error), False))
        except Exception as error:  # a channel must not end the watch
            self._results.put((one, f"{type(error).__name__}: {error}", False))

    def _take(self, wait: float) -> None:
        """Note what became of one that was sent."""
        try:
            one, why, done = self._results.get(timeout=wait)
        except queue.Empty:
            return
        self._busy.discard(one.to)
        if why and done:
            self._say(
                with_code(f"{one.to!r} took {one.id}: {why}", code="notification-partly-refused")
            )
        elif why:
            self._say(
                with_code(f"{one.to!r} did not take {one.id}: {why}", code="notification-refused")
            )
        if done:
            self._keep(delivery.mark_delivered(self._state, one))
        else:
            self._keep(delivery.mark_failed(self._state, one, why, time.time()))

    def _left(self) -> bool:
        """Whether one who looks once has something to try still."""
        heads: dict[str, Notification] = {}
        for one in self._state.outbox:
            heads.setdefault(one.to, one)
        return any(one.tries < MAX_TRIES for one in heads.values())
