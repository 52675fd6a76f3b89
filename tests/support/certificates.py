"""Certificates of an authority that only the tests have."""

from __future__ import annotations

from pathlib import Path

import trustme

AUTHORITY = trustme.CA()


def written(folder: Path, *names: str) -> trustme.LeafCert:
    """Puts a certificate and its key into the folder of config.yaml."""
    folder.mkdir(exist_ok=True)
    pair = AUTHORITY.issue_cert(*(names or ("127.0.0.1", "localhost")))
    (folder / "key.pem").unlink(missing_ok=True)
    (folder / "key.pem").touch(mode=0o600)
    pair.private_key_pem.write_to_path(folder / "key.pem")
    pair.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    return pair
