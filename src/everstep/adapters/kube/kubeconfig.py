"""Credentials from a kubeconfig, in every form that lightkube knows: certificates, tokens, exec plugins."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx2
import yaml
from lightkube.config.client_adapter import user_auth, verify_cluster
from lightkube.config.kubeconfig import KubeConfig
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError

from everstep.core.errors import InvalidInput


def read(path: Path) -> tuple[str, ssl.SSLContext, httpx2.Auth | None]:
    """Server URL, trust and credentials of the current context.

    Raises:
        InvalidInput: the file is missing, malformed, or names no current context.
    """
    if not path.exists():
        hint = 'name one by --kubeconfig or $KUBECONFIG (for a lab: eval "$(everstep lab env)")'
        raise InvalidInput(f"cannot use the kubeconfig {path}: it does not exist; {hint}")
    try:
        config = KubeConfig.from_file(path).get()
        if config is None:
            raise InvalidInput(f"{path} names no current context; set one by `kubectl config use-context`")
        trust = verify_cluster(config.cluster, config.user or User(), config.abs_file)
        return config.cluster.server, trust, user_auth(config.user)
    except (ConfigError, yaml.YAMLError, KeyError, AttributeError, TypeError, OSError, ValueError) as why:
        raise InvalidInput(f"cannot use the kubeconfig {path}: {' '.join(str(why).split())}") from why
