"""The folder of a federation: what `init` writes, and where everything else finds it.

DIR/authority/   ca.key (keep it offline), ca.crt
DIR/server/      federation.toml, server.key, server.crt, ca.crt, sites/NAME.pub       -> to the server
DIR/site-NAME/   site.toml, site.key, ca.crt; later its states                         -> to the site, and nobody else
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perinvfl.core.files import writing
from perinvfl.core.naming import in_short
from perinvfl.core.toml_text import TomlError, read_toml
from perinvfl.errors import UserError
from perinvfl.flower import credentials

PORT = 9443


@dataclass(frozen=True)
class ServerFolder:
    """The server's part of a federation."""

    path: Path
    hosts: tuple[str, ...]
    port: int
    sites: tuple[str, ...]  # in the order of the clients

    @property
    def authority(self) -> Path:
        return self.path / "ca.crt"

    @property
    def certificate(self) -> Path:
        return self.path / "server.crt"

    @property
    def key(self) -> Path:
        return self.path / "server.key"

    @property
    def secret(self) -> Path:
        """What `up` and `run` on the server's machine know each other by; new at every start."""
        return self.path / "control.key"

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    @property
    def running(self) -> Path:
        """One file for each run under way."""
        return self.path / "running"

    def public_key(self, site: str) -> bytes:
        return (self.path / "sites" / f"{site}.pub").read_bytes()


@dataclass(frozen=True)
class SiteFolder:
    path: Path
    name: str
    client: int
    server: str  # host:port
    allow: tuple[str, ...] = ()  # own code that an experiment may name, as module:name

    @property
    def authority(self) -> Path:
        return self.path / "ca.crt"

    @property
    def key(self) -> Path:
        return self.path / "site.key"


def make_federation(folder: Path, sites: list[str], hosts: list[str], port: int) -> None:
    """Write everything that a federation's machines need."""
    _check_names(sites)
    if not 1 <= port <= 65535:
        raise UserError(f"--port {port}: must be between 1 and 65535.")
    if not hosts:
        raise UserError("--host is missing: give the name or address under which sites reach the server.")
    for host in hosts:
        credentials.general_name(host)  # refuses what is none, before anything is written
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not empty; give the name of a new folder.")
    authority = credentials.make_authority(folder.resolve().name)
    server_key, server_certificate = credentials.make_server_certificate(authority, hosts)
    places = [
        folder / "authority",
        folder / "server",
        folder / "server" / "sites",
        *(folder / f"site-{site}" for site in sites),
    ]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for place in places:
            place.mkdir(mode=0o700)
    ca = credentials.certificate_pem(authority.certificate)
    credentials.write_secret(folder / "authority" / "ca.key", credentials.private_pem(authority.key))
    _write(folder / "authority" / "ca.crt", ca)
    server = folder / "server"
    credentials.write_secret(server / "server.key", credentials.private_pem(server_key))
    _write(server / "server.crt", credentials.certificate_pem(server_certificate))
    _write(server / "ca.crt", ca)
    _write(server / "federation.toml", _toml({"hosts": hosts, "port": port, "sites": sites}))
    address = f"[{hosts[0]}]:{port}" if ":" in hosts[0] else f"{hosts[0]}:{port}"
    for client, site in enumerate(sites):
        key = credentials.make_site_key()
        place = folder / f"site-{site}"
        credentials.write_secret(place / "site.key", credentials.private_pem(key))
        _write(place / "ca.crt", ca)
        _write(place / "site.toml", _toml({"site": site, "client": client, "server": address}))
        _write(server / "sites" / f"{site}.pub", credentials.public_pem(key.public_key()))


def open_server(folder: Path) -> ServerFolder:
    """From the federation's folder, or from the server's part alone."""
    place = folder / "server" if (folder / "server" / "federation.toml").exists() else folder
    table = _read(
        place / "federation.toml", f"{folder} is not a federation; `perinvfl federation init {folder}` makes one"
    )
    try:
        return ServerFolder(place, tuple(table["hosts"]), int(table["port"]), tuple(table["sites"]))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{place / 'federation.toml'} is damaged ({error}); hosts, port and sites are needed."
        ) from None


def open_site(folder: Path, server: str | None = None, allow: Sequence[str] = ()) -> SiteFolder:
    """allow: names that are allowed beside those in the folder."""
    file = folder / "site.toml"
    table = _read(file, f"{folder} is not a site's folder; give one that `federation init` wrote")
    listed = table.get("allow", [])
    allowed = [*(listed if isinstance(listed, list) else [listed]), *allow]
    for name in allowed:
        if not isinstance(name, str) or not re.fullmatch(r"[\w.]+:[\w.]+", name):
            where = "--allow" if name in allow else f"{file}, allow"
            raise UserError(f"{where}: {in_short(name)} must be module:name, such as my_algorithm:FadingProx.")
    try:
        address = server or str(table["server"])
        return SiteFolder(folder, str(table["site"]), int(table["client"]), address, tuple(allowed))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{file} is damaged ({error}); site, client and server are needed.") from None


def _read(path: Path, otherwise: str) -> dict[str, Any]:
    try:
        return read_toml(path)
    except FileNotFoundError:
        raise UserError(f"{otherwise}.") from None
    except (OSError, TomlError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}.") from None


def _write(path: Path, content: bytes) -> None:
    with writing(path):
        path.write_bytes(content)


def _toml(table: dict[str, Any]) -> bytes:
    """Texts, whole numbers and lists of texts look the same in JSON."""
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items()).encode()


def _check_names(sites: list[str]) -> None:
    if not sites:
        raise UserError("--sites is empty: give the names of the sites, such as a,b,c.")
    for site in sites:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}", site):
            raise UserError(
                f'--sites: "{site}" cannot name a folder; use letters, digits, dots, dashes and underscores.'
            )
    if len(set(sites)) < len(sites):
        raise UserError("--sites: each site must have a name of its own.")
