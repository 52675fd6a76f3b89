"""TLS for the gateway's own port: the certificate that it shows, and how this machine's commands recognise it."""

from __future__ import annotations

import logging
import re
import ssl
import stat
from pathlib import Path

from gateway.errors import ProviderInvalidRequest

log = logging.getLogger("ctxgate")

CERT, KEY = "server.tls.cert", "server.tls.key"
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


class Certificate:
    """A certificate and its key, both in PEM. Raises ProviderInvalidRequest, with the key of config.yaml and the file,
    if they are missing, unreadable, encrypted or not a pair, or if every user of the machine can read the key."""

    def __init__(self, cert: Path, key: Path) -> None:
        self._cert, self._key = cert, key
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        """For the server. New connections use the files that `renew` last read."""
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._read()

    def renew(self) -> None:
        """Reads the files again, and logs the outcome. Keeps the present certificate if they have a fault."""
        try:
            self._read()
        except ProviderInvalidRequest as error:
            log.error("keeps the present certificate: %s", error)
        else:
            log.info("read the certificate again")

    def _read(self) -> None:
        cert, key = self._cert, self._key
        certificate(cert)
        secret = _text(KEY, key, "private key")
        if key.stat().st_mode & stat.S_IROTH:
            raise ProviderInvalidRequest(f"{KEY}: every user of this machine can read {key}; run chmod o-r on it")
        if "ENCRYPTED" in secret:
            cure = f"write one without: openssl pkey -in {key.name} -out plain.pem"
            raise ProviderInvalidRequest(f"{KEY}: {key} needs a passphrase, which nobody can type in; {cure}")
        if "PRIVATE KEY-----" not in secret:
            raise ProviderInvalidRequest(f"{KEY}: {key} has no private key in PEM; name the file that has")
        # Load into a new context first: a failure would leave the running one without a key pair.
        _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), cert, key)
        _load(self.context, cert, key)


def certificate(cert: Path) -> str:
    """The first certificate of the file, the server's own, in PEM. Raises ProviderInvalidRequest."""
    found = _CERTIFICATE.search(_text(CERT, cert, "certificate"))
    if found is None:
        raise ProviderInvalidRequest(f"{CERT}: {cert} has no certificate in PEM; name the file that has")
    return found[0]


def trusting(cert: Path) -> ssl.SSLContext:
    """For a client on this machine: accepts the server with this very certificate, whatever name it is for.

    Raises ProviderInvalidRequest if the certificate can't be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata=certificate(cert))
    except ssl.SSLError as error:
        raise _unusable(CERT, cert, error) from None
    return context


def _text(place: str, file: Path, what: str) -> str:
    try:
        return file.read_text("latin-1")
    except FileNotFoundError:
        cure = f"put the {what} there, or correct {place} of config.yaml"
        raise ProviderInvalidRequest(f"{place}: there is no {file}; {cure}") from None
    except OSError as error:
        cure = "let the user who runs the gateway read it"
        raise ProviderInvalidRequest(f"{place}: {file} can't be read: {error.strerror}; {cure}") from None


def _load(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    try:
        # OpenSSL would ask the terminal for a passphrase.
        context.load_cert_chain(cert, key, password=b"")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            cure = "name the key that the certificate was made with"
            raise ProviderInvalidRequest(f"{KEY}: {key} isn't the key of {cert}; {cure}") from None
        raise _unusable("server.tls", f"{cert} and {key}", error) from None
    except OSError as error:
        raise ProviderInvalidRequest(f"server.tls: {cert} and {key} can't be read: {error.strerror}") from None


def _unusable(place: str, what: object, error: ssl.SSLError) -> ProviderInvalidRequest:
    reason = (error.reason or str(error)).lower().replace("_", " ")
    return ProviderInvalidRequest(f"{place}: OpenSSL refuses {what} ({reason}); make the pair again")
