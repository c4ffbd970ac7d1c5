"""Which API server is asked, and as whom: by flags, or as the pod in which this runs."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path

from headway.errors import UsageError
from headway.schedule.publish.api import Api

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def connect_api(
    url: str | None,
    token: str | None,
    authority: str | None,
    env: Mapping[str, str] = os.environ,
    account: Path = SERVICE_ACCOUNT,
) -> Api:
    """The API server that was named, or the one of the pod in which this runs."""
    if url is None:
        host, port = env.get("KUBERNETES_SERVICE_HOST"), env.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise UsageError(
                "this is no pod of Kubernetes; give the API server by --api URL, for example that "
                "of `kubectl proxy`",
                code="api-not-named",
            )
        url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    if not url.startswith(("http://", "https://")):
        raise UsageError(
            f"--api is a URL that begins with http:// or https://, not {url!r}", code="url-invalid"
        )
    tokens = Path(token) if token else account / "token"
    given = Path(authority) if authority else account / "ca.crt"
    if token and not tokens.is_file():
        raise UsageError(
            f"there is no token in {tokens}; check --token-file", code="token-file-not-found"
        )
    try:
        known = str(given) if authority or given.is_file() else None
        context = ssl.create_default_context(cafile=known)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"{given} has no certificate: {error}; check --ca-file", code="certificate-invalid"
        ) from None
    # The pod's own token is for the pod's own server, and never goes in the clear.
    known_to = token is not None or url.startswith("https://")
    return Api(url, lambda: _read_secret(tokens) if known_to else None, context)


def _read_secret(path: Path) -> str | None:
    """As it is now: Kubernetes replaces it every hour or so."""
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


def own_namespace(account: Path = SERVICE_ACCOUNT) -> str:
    """That of the pod in which this runs, else `default`."""
    return _read_secret(account / "namespace") or "default"
