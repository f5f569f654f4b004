"""Who is who: a certificate authority, the server's certificate, and one ECDSA key pair per site.

A site proves itself with its key, the server with a certificate for the names under which sites reach it.
"""

import datetime
import errno
import ipaddress
import os
import re
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from perinvfl.core.files import write_atomically, writing
from perinvfl.errors import UserError

VALID_FOR = datetime.timedelta(days=825)  # what strict clients accept of a server's certificate
AUTHORITY_VALID_FOR = datetime.timedelta(days=3650)
ALWAYS = ("localhost", "127.0.0.1", "::1")  # the server talks to itself


@dataclass(frozen=True)
class Authority:
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def make_authority(name: str) -> Authority:
    key = ec.generate_private_key(ec.SECP384R1())
    subject = _name(f"{name} certificate authority")
    usage = x509.KeyUsage(
        key_cert_sign=True,
        crl_sign=True,
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _builder(subject, subject, key.public_key(), AUTHORITY_VALID_FOR)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    return Authority(key, certificate)


def make_server_certificate(
    authority: Authority, hosts: list[str]
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """A key and a certificate for every name and address under which the server may be reached."""
    key = ec.generate_private_key(ec.SECP384R1())
    names = [general_name(host) for host in dict.fromkeys([*hosts, *ALWAYS])]
    issuer = authority.certificate
    certificate = (
        _builder(_name(hosts[0]), issuer.subject, key.public_key(), VALID_FOR)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
        .sign(authority.key, hashes.SHA384())
    )
    return key, certificate


def make_site_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def general_name(host: str) -> x509.GeneralName:
    """A host as a certificate names it: by address or by name."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?", host):
        raise UserError(f"--host {host}: must be a name such as server.example or an IP address, without a port.")
    return x509.DNSName(host)


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def public_pem(key: ec.EllipticCurvePublicKey) -> bytes:
    """Also what Flower calls the public key's bytes."""
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def certificate_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def read_private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise UserError(f"{path} is not a private key; copy the site's folder again.") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{path} is not an elliptic-curve key; use the one that `federation init` wrote.")
    return key


def write_secret(path: Path, content: bytes) -> None:
    """For the owner's eyes only, from the first byte on; there whole or not at all. No secret is written over."""
    with writing(path):
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    write_atomically(path, content, mode=0o600)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, valid_for: datetime.timedelta
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
        .not_valid_after(now + valid_for)
    )
