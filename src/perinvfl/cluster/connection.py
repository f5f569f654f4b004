"""A Ray cluster to work on: one that runs already, or one on this machine that ends with the command."""

import logging
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from perinvfl.core.extras import how_to_install
from perinvfl.errors import UserError

LOCAL = "local"
PATIENCE = 5.0  # seconds for a cluster to answer
PREFIX = "ray://"
ON_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # "0": 127.0.0.1 is taken as it is
NEEDED = f"--on {{on}} needs Ray, which is not installed: {how_to_install('ray')}."


def address_of(on: str) -> str:
    """Where `--on` says that the cluster is: its address, or LOCAL.

    >>> address_of("ray://head:10001")
    'ray://head:10001'
    """
    host, colon, port = on.removeprefix(PREFIX).rpartition(":")
    if on.startswith(PREFIX) and host and colon and port.isdigit():
        return on
    if on == "ray":
        return os.environ.get("RAY_ADDRESS", "") or LOCAL
    raise UserError(f"--on {on}: must be ray, or ray://HOST:PORT for a cluster that runs already.")


def check_reachable(address: str, on: str) -> None:
    """Ray itself would try for ever."""
    host, _, port = address.removeprefix(PREFIX).rpartition(":")
    if not host or not port.isdigit():
        raise UserError(f"--on {on}: RAY_ADDRESS is {address}, and must be HOST:PORT or ray://HOST:PORT.")
    why = _refused(host.strip("[]"), int(port))
    if why:
        raise UserError(f"--on {on}: no Ray cluster answers at {address} ({why}).")
    loopback = host in ("localhost", "127.0.0.1")
    if loopback and not address.startswith(PREFIX) and _refused(own_address(), int(port)):
        os.environ.setdefault(ON_LOOPBACK, "0")  # else Ray would look for it at the other address


def _refused(host: str, port: int) -> str:
    """Why nobody answers there; "" where somebody does."""
    try:
        socket.create_connection((host, port), timeout=PATIENCE).close()
    except (OSError, OverflowError) as error:
        return str(getattr(error, "strerror", None) or error)
    return ""


def own_address() -> str:
    """Of this machine, as others see it; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("192.0.2.1", 9))
            return str(asking.getsockname()[0])
        except OSError:
            return "127.0.0.1"


@contextmanager
def connected(on: str) -> Iterator[Any]:
    """The library, while there is a connection."""
    address = address_of(on)
    if address not in (LOCAL, "auto"):
        check_reachable(address, on)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing is sent anywhere unasked
    try:
        import ray
    except ModuleNotFoundError:
        raise UserError(NEEDED.format(on=on)) from None
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    if address == LOCAL:
        options |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        os.environ.setdefault("RAY_worker_niceness", "0")  # else other programs of this machine go first
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tips about later versions of Ray
            ray.init(address, **options)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        where = "Ray does not start on this machine" if address == LOCAL else f"no Ray cluster answers at {address}"
        hint = "; start the head with GRPC_ENABLE_FORK_SUPPORT=0" if "Initialization failure" in why else ""
        raise UserError(f"--on {on}: {where} ({why}{hint}).") from None
    # What Ray prints about a lost node is many lines, and ours is one.
    if hasattr(ray._private.worker, "print_to_stdstream"):
        ray._private.worker.print_to_stdstream = lambda *lines, **options: None
    try:
        yield ray
    finally:
        ray.shutdown()
