"""Flower's SuperLink as a web application, entered below its command line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.common.constant import (
    HEARTBEAT_DEFAULT_INTERVAL,
    ISOLATION_MODE_PROCESS,
    NOOP_ACCOUNT_NAME,
    NOOP_FLWR_AID,
    TRANSPORT_TYPE_GRPC_RERE,
)
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLWR_IN_MEMORY_DB_NAME
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
from flwr.superlink.config_loader import SuperLinkLifespanConfig, load_control_authn_plugin
from flwr.superlink.main import create_app

__all__ = ["FLEET", "PUBLIC_KEY_HEADER", "RUNTIME", "build_superlink"]

PUBLIC_KEY_HEADER = FLEET_HTTP_PUBLIC_KEY_HEADER  # by which a site says who it is, in base 64
FLEET, RUNTIME = "/v1/fleet/", "/v1/runtime/"  # where the APIs of sites and of ServerApps lie


def build_superlink(
    host: str, port: int, authority: Path, certificate: Path, key: Path, secret: bytes, sites: Mapping[str, bytes]
) -> Any:
    """An ASGI application that keeps everything in memory, and knows these sites by their public keys.

    secret: what a process must show that would be a run's ServerApp. No event log, no code from elsewhere.
    """
    config = SuperLinkLifespanConfig(
        control_address="",
        health_server_address=None,
        host=host,
        port=port,
        insecure=False,
        certificates=(authority.read_bytes(), certificate.read_bytes(), key.read_bytes()),
        superexec_auth_secret=secret,
        authn_plugin=load_control_authn_plugin(),
        event_log_plugin=None,
        fleet_event_log_plugin=None,
        enable_event_log=False,
        artifact_provider=None,
        enable_supernode_auth=True,
        fleet_api_type=TRANSPORT_TYPE_GRPC_RERE,
        fleet_api_address=None,
        simulation=False,
        ssl_ca_certfile=str(authority),
        ssl_certfile=str(certificate),
        ssl_keyfile=str(key),
        database=FLWR_IN_MEMORY_DB_NAME,
        isolation=ISOLATION_MODE_PROCESS,
        runtime_dependency_install=False,
    )
    app = create_app(config, SuperLinkLifespan)
    state = app.state.linkstate_factory.state()
    for name, public_key in sites.items():
        state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, public_key, HEARTBEAT_DEFAULT_INTERVAL, name=name)
    return app
