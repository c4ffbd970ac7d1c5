"""What follows a publish: the model registry is told, and the anchor is released."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from headway.errors import HeadwayError, RegistryFailed, SnapshotDamaged
from headway.publish import claims
from headway.publish import registry as registries
from headway.publish.anchor import Anchor
from headway.publish.recipe import Recipe
from headway.publish.registry import Registry
from headway.publish.store import Say, SnapshotStore


@dataclass(frozen=True)
class AfterPublish:
    """As a recipe wants it; it is made before the work begins, so that mistakes are told early."""

    recipe: Recipe
    store: SnapshotStore
    registry: Registry | None
    say: Say

    @contextlib.contextmanager
    def registering(self) -> Iterator[None]:
        """Register what was published meanwhile, and what an earlier start has not come to."""
        try:
            yield
        except HeadwayError:
            with contextlib.suppress(RegistryFailed, SnapshotDamaged):
                self.register()
            raise
        self.register()

    def release(self, anchor: Anchor, own: str) -> None:
        """Let retention have the anchor, if the recipe says so; `own` is our claim on it."""
        if self.recipe.release and claims.release_anchor(anchor, own):
            self.say(f"released {anchor.path}")

    def register(self) -> None:
        """Bring the registry to where the store is."""
        told = self.recipe.registry
        if told is None or self.registry is None:
            return
        version = registries.follow(self.store, told, self.registry)
        if version is not None:
            self.say(f"registered as version {version} of {told.mlflow}, {told.alias}")


def after_publish(recipe: Recipe, store: SnapshotStore, say: Say) -> AfterPublish:
    """For one publish, or for many."""
    told = recipe.registry
    if told is None:
        return AfterPublish(recipe, store, None, say)
    registry = registries.open_registry(told)
    registries.begin(store, told)
    return AfterPublish(recipe, store, registry, say)
