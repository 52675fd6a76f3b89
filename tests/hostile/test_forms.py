"""Forms, each larger or stranger than any client's."""

from __future__ import annotations

import pytest

from tests.hostile.conftest import Unharmed
from tests.hostile.running import Gateway

SIZE = 30_000_000
MULTIPART = "multipart/form-data; boundary=x"
PURPOSE = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
FILE = b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'

FORMS: dict[str, tuple[str, bytes]] = {
    "a quadratic charset": (f"{MULTIPART}; charset=punycode", PURPOSE.replace(b"batch", b"a" * 500_000) + b"--x--"),
    "a charset in a field": (MULTIPART, PURPOSE.replace(b"batch", b"a" * 60_000) + b"--x--"),
    "urlencoded": ("application/x-www-form-urlencoded", b"&" * SIZE),
    "no boundary": ("multipart/form-data", b"-" * SIZE),
    "before the first field": (MULTIPART, b"\r\n--" * (SIZE // 4)),
    "a header without an end": (MULTIPART, PURPOSE + b"--x\r\nA: " + b"a" * SIZE),
    "many headers": (MULTIPART, b"--x\r\n" + b"a: b\r\n" * (SIZE // 6)),
    "many fields": (MULTIPART, PURPOSE * (SIZE // len(PURPOSE))),
    "a file that never ends": (MULTIPART, PURPOSE + FILE + b"\r\n--" * (SIZE // 4)),
    "a boundary like its content": (
        f"multipart/form-data; boundary={'a' * 70}",
        (PURPOSE + FILE).replace(b"--x", b"--" + b"a" * 70) + b"\r\n--" + b"a" * SIZE,
    ),
    "options": (MULTIPART + "; a=1" * 5000, b"--x--"),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str, gateway: Gateway, unharmed: Unharmed) -> None:
    kind, body = FORMS[form]
    with unharmed(body=len(body)):
        answer = gateway.ask("POST", "/v1/files", body, {"Content-Type": kind})
        assert answer.status in (400, 431), answer


def test_a_large_file_is_stored(gateway: Gateway, unharmed: Unharmed) -> None:
    content = b"\r\n--y" * 4_000_000
    with unharmed(body=len(content)):
        answer = gateway.ask(
            "POST", "/v1/files", PURPOSE + FILE + content + b"\r\n--x--\r\n", {"Content-Type": MULTIPART}
        )
        assert (answer.status, answer.json["bytes"]) == (200, len(content)), answer
    assert gateway.ask("GET", f"/v1/files/{answer.json['id']}/content").body == content
