"""What `federation init` writes, who is let in, and one clear sentence for every mistake."""

import asyncio
import ssl
from base64 import b64encode
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from perinvfl.cli import call
from perinvfl.core.files import only_one
from perinvfl.errors import UserError
from perinvfl.flower import credentials, layout
from perinvfl.flower.server_process import Guard
from tests.commands import called


def test_certificates_name_the_server_and_nothing_else(tmp_path: Path) -> None:
    layout.make_federation(tmp_path / "fed", ["a", "b"], ["server.example", "10.1.2.3", "fd00::1"], 9443)
    server = layout.open_server(tmp_path / "fed")
    assert server == layout.open_server(tmp_path / "fed" / "server")
    certificate = x509.load_pem_x509_certificate(server.certificate.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["server.example", "localhost"]
    addresses = list(map(str, names.get_values_for_type(x509.IPAddress)))
    assert addresses == ["10.1.2.3", "fd00::1", "127.0.0.1", "::1"]
    authority = x509.load_pem_x509_certificate(server.authority.read_bytes())
    certificate.verify_directly_issued_by(authority)
    ssl.create_default_context(cafile=str(server.authority)).load_cert_chain(server.certificate, server.key)
    for client, name in enumerate(("a", "b")):
        site = layout.open_site(tmp_path / "fed" / f"site-{name}")
        assert (site.name, site.client, site.server) == (name, client, "server.example:9443")
        key = credentials.read_private_key(site.key)
        assert isinstance(key.curve, ec.SECP384R1)
        assert credentials.public_pem(key.public_key()) == server.public_key(name)
    assert layout.open_site(tmp_path / "fed" / "site-a", "other:1").server == "other:1"


@pytest.mark.parametrize(
    ("sites", "hosts", "port", "says"),
    [
        ([], ["h"], 1, "--sites is empty"),
        (["a", "a"], ["h"], 1, "a name of its own"),
        (["../a"], ["h"], 1, '"../a" cannot name a folder'),
        (["a"], [], 1, "--host is missing"),
        (["a"], ["héé"], 1, "--host héé"),
        (["a"], ["the server"], 1, "--host the server"),
        (["a"], ["h:9443"], 1, "without a port"),
        (["a"], ["h"], 0, "--port 0"),
    ],
)
def test_what_init_refuses(sites: list[str], hosts: list[str], port: int, says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=says):
        layout.make_federation(tmp_path / "fed", sites, hosts, port)
    assert not (tmp_path / "fed").exists()


def test_mistakes_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def says(*arguments: object) -> str:
        assert call(["federation", *map(str, arguments)]) == 2
        return capsys.readouterr().err

    fed = tmp_path / "fed"
    assert call(["federation", "init", str(fed), "--sites", "a,b", "--host", "localhost"]) == 0
    assert "is not empty" in says("init", fed, "--sites", "a", "--host", "h")
    assert "is not a federation" in says("status", tmp_path / "none")
    assert "is not a site's folder" in says("join", fed)
    assert "does not exist" in says("join", fed / "site-a", "--data", tmp_path / "none.npz")
    with only_one(fed / "site-a" / "site.lock", ""):  # gets as far as taking part
        assert "takes part as a already" in says("join", fed / "site-a", "--data", tmp_path)
    assert "The server is not running" in says("status", fed)
    file = tmp_path / "x.toml"
    file.write_text('[data]\nbenchmark = "random"\n[[algorithm]]\nname = "fedavg"\n[federation]\nround_timeot = 3\n')
    assert "did you mean round_timeout?" in says("run", fed, file)
    file.write_text(file.read_text().replace("round_timeot", "round_timeout"))
    assert "has 3 clients and the federation 2 sites" in says("run", fed, file)
    assert "only 2 sites" in says("run", fed, file, "--set", "data.clients=2", "--set", "federation.minimum_replies=3")
    assert "The server is not running" in says("run", fed, file, "--set", "data.clients=2")
    (fed / "server" / "control.key").write_text("from before")
    assert "does not answer" in says("run", fed, file, "--set", "data.clients=2")
    (fed / "site-a" / "site.key").write_text("no key")
    assert "is not a private key" in says("join", fed / "site-a")
    (fed / "site-a" / "site.toml").write_text("site = 1")
    assert "is damaged" in says("join", fed / "site-a")


def test_one_machine_ignores_the_settings_of_a_federation(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text(
        '[data]\nbenchmark = "random"\n[model]\nhidden = [3]\n[training]\nrounds = 1\n[[algorithm]]\nname = "fedavg"\n'
        "[federation]\nround_timeout = 3\n"
    )
    assert called("run", file, "--out", tmp_path / "runs").returncode == 0


def status_of(path: str, client: str, method: str = "POST", **headers: str) -> int:
    """What the guard answers; 200 stands for being let in."""
    sent: list[dict[str, object]] = []

    async def app(scope: object, receive: object, send: object) -> None:
        sent.append({"status": 200})

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    async def receive() -> dict[str, object]:
        return {}

    guard = Guard(app, "secret", frozenset([b64encode(b"known")]))
    encoded = [(key.replace("_", "-").encode(), value.encode()) for key, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "client": (client, 1), "headers": encoded}
    asyncio.run(guard(scope, receive, send))  # type: ignore[arg-type]
    return int(sent[0]["status"])  # type: ignore[call-overload]


def test_the_guard() -> None:
    known = b64encode(b"known").decode()
    fleet, control, runtime = "/v1/fleet/pull-messages", "/v1/control/start-run", "/v1/runtime/acquire-task"
    assert status_of(fleet, "203.0.113.9", content_length="0", flwr_public_key=known) == 200
    assert status_of(fleet, "203.0.113.9", content_length="0", flwr_public_key="other") == 403
    assert status_of(fleet, "203.0.113.9", content_length="0") == 403
    assert status_of(fleet, "203.0.113.9", content_length=str(2**30), flwr_public_key=known) == 413
    assert status_of(fleet, "203.0.113.9", flwr_public_key=known) == 411
    assert status_of(control, "203.0.113.9", content_length="0", perinvfl_control="secret") == 404
    assert status_of(runtime, "203.0.113.9", content_length="0") == 404
    assert status_of("/docs", "203.0.113.9", method="GET") == 404
    assert status_of(control, "127.0.0.1", content_length="0") == 403
    assert status_of(control, "127.0.0.1", content_length="0", perinvfl_control="guess") == 403
    assert status_of(control, "127.0.0.1", content_length="0", perinvfl_control="secret") == 200
    assert status_of(runtime, "::1", content_length="0") == 200
