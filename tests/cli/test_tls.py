"""`server.tls`: https on the gateway's own port, and what says so where the certificate is at fault."""

from __future__ import annotations

import shutil
import signal
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import connect

from tests.cli.commands import config, ctxgate, serving
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.support.certificates import AUTHORITY, written

NAME = "gateway.example"


def configured(folder: Path, port: int) -> Path:
    return config(
        folder,
        "active_model: echo\nmodels: {echo: {runtime: echo}}\n"
        f"server: {{port: {port}, tls: {{cert: cert.pem, key: key.pem}}}}\n",
    )


def trusted() -> ssl.SSLContext:
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    return context


@contextmanager
def gateway(folder: Path, *args: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A gateway with TLS. Yields the base URL that it says, without /v1."""
    configured(folder, free_port())
    with serving(folder, *args) as process:
        assert process.stderr is not None
        yield process.stderr.readline().split()[1].removesuffix("/v1"), process


def test_httpx_talks_to_it_whole_streamed_and_by_websocket(tmp_path: Path) -> None:
    written(tmp_path / "_models")
    ask = {"messages": [{"role": "user", "content": "Over TLS."}]}
    with gateway(tmp_path) as (url, _), httpx.Client(verify=trusted(), trust_env=False, timeout=PATIENCE) as client:
        assert url.startswith("https://127.0.0.1:")
        whole = client.post(f"{url}/v1/chat/completions", json=ask)
        assert whole.json()["choices"][0]["message"]["content"] == "Over TLS."
        with client.stream("POST", f"{url}/v1/chat/completions", json=ask | {"stream": True}) as streamed:
            assert [*streamed.iter_lines()][-2:] == ["data: [DONE]", ""]
        assert client.get(f"{url}/v1/models").json()["data"][0]["id"] == "echo"
        # Any error that ends the connection goes the way on which a plain socket would be half closed.
        refused = client.get(f"{url}/health", headers={"padding": "x" * 200_000})
        assert refused.status_code == 431
        with connect(f"wss{url.removeprefix('https')}/v1/responses", ssl=trusted(), open_timeout=PATIENCE) as socket:
            socket.send('{"type": "response.create", "model": "echo", "input": "Hello."}')
            assert "response.created" in str(socket.recv(timeout=PATIENCE))


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl isn't installed")
def test_curl_talks_to_it(tmp_path: Path) -> None:
    written(tmp_path / "_models")
    AUTHORITY.cert_pem.write_to_path(tmp_path / "ca.pem")
    command = ["curl", "--silent", "--show-error", "--fail", "--cacert", str(tmp_path / "ca.pem")]
    with gateway(tmp_path) as (url, _):
        done = subprocess.run([*command, f"{url}/health"], capture_output=True, text=True, timeout=PATIENCE)
        assert (done.returncode, done.stderr) == (0, "")
        assert '"active_model"' in done.stdout


def test_plain_http_on_its_port_gets_nothing_and_costs_nothing(tmp_path: Path) -> None:
    written(tmp_path / "_models")
    with gateway(tmp_path) as (url, process):
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http{url.removeprefix('https')}/health", timeout=PATIENCE, trust_env=False)
        assert httpx.get(f"{url}/health", verify=trusted(), timeout=PATIENCE, trust_env=False).status_code == 200
        process.terminate()
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_the_commands_find_it_whatever_name_its_certificate_is_for(tmp_path: Path) -> None:
    written(tmp_path / "_models", NAME)
    with gateway(tmp_path) as (url, _):
        status = ctxgate("status", "--once", cwd=tmp_path)
        assert (status.returncode, status.stderr) == (0, "")
        assert "* echo" in status.stdout
        doctor = ctxgate("doctor", cwd=tmp_path)
        assert f"gateway: runs at {url}" in doctor.stdout
        assert f"gateway: runs at {url}" in ctxgate("doctor", "--url", url, cwd=tmp_path).stdout
        assert '"running": true' in ctxgate("models", "--json", cwd=tmp_path).stdout
        chat = ctxgate("chat", cwd=tmp_path, stdin="Hello.\n")
        assert chat.stdout == "Hello.\n"
        assert ctxgate("status", "--once", "--url", url, cwd=tmp_path).returncode == 0
        # Another server on that port has no certificate that they accept.
        written(tmp_path / "_models", NAME)
        assert "certificate" in ctxgate("status", "--once", cwd=tmp_path).stderr


def test_a_gateway_on_another_port_is_found(tmp_path: Path) -> None:
    written(tmp_path / "_models")
    with gateway(tmp_path, "--port", "0"):
        # Named, so that it isn't another gateway of this user.
        status = ctxgate("status", "--once", "--config", tmp_path / "_models/config.yaml", cwd=tmp_path)
        assert (status.returncode, status.stderr) == (0, "")


def test_sighup_reads_a_new_certificate_and_keeps_the_old_one_if_that_is_at_fault(tmp_path: Path) -> None:
    folder = tmp_path / "_models"
    written(folder)
    with gateway(tmp_path) as (url, process):
        assert process.stderr is not None

        def shown() -> str:
            _, _, address = url.partition("//")
            host, _, port = address.partition(":")
            return ssl.get_server_certificate((host, int(port)), timeout=PATIENCE)

        def hung_up() -> str:
            assert process.stderr is not None
            process.send_signal(signal.SIGHUP)
            return next(line for line in process.stderr if "certificate" in line)

        old = shown()
        new = written(folder)
        assert "read the certificate again" in hung_up()
        assert ssl.PEM_cert_to_DER_cert(shown()) == ssl.PEM_cert_to_DER_cert(new.cert_chain_pems[0].bytes().decode())
        assert shown() != old
        (folder / "key.pem").write_text("nothing")
        assert "keeps the present certificate: server.tls.key: " in hung_up()
        assert ssl.PEM_cert_to_DER_cert(shown()) == ssl.PEM_cert_to_DER_cert(new.cert_chain_pems[0].bytes().decode())


def test_plain_http_where_the_command_line_says_so(tmp_path: Path) -> None:
    configured(tmp_path, free_port())
    with serving(tmp_path, "--no-tls", "--port", "0") as process:
        assert process.stderr is not None
        assert process.stderr.readline().split()[1].startswith("http://127.0.0.1:")


def spoilt(folder: Path, how: str) -> None:
    cert, key = folder / "cert.pem", folder / "key.pem"
    pair = written(folder)
    match how:
        case "no certificate":
            cert.unlink()
        case "no key":
            key.unlink()
        case "folder":
            cert.unlink()
            cert.mkdir()
        case "no pem":
            cert.write_text("of wax")
        case "swapped":
            key.write_text(cert.read_text())
        case "another's":
            AUTHORITY.issue_cert("127.0.0.1").private_key_pem.write_to_path(key)
        case "damaged":
            cert.write_text(cert.read_text().replace("MII", "AAA", 1))
        case "encrypted":
            from cryptography.hazmat.primitives import serialization as form

            loaded = form.load_pem_private_key(pair.private_key_pem.bytes(), None)
            lock = form.BestAvailableEncryption(b"secret")
            key.write_bytes(loaded.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, lock))
        case "everybody's":
            key.chmod(0o644)


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("no certificate", "server.tls.cert: there is no {}/cert.pem; put the certificate there, or correct"),
        ("no key", "server.tls.key: there is no {}/key.pem; put the private key there, or correct server.tls.key"),
        ("folder", "server.tls.cert: {}/cert.pem can't be read: Is a directory; let the user"),
        ("no pem", "server.tls.cert: {}/cert.pem has no certificate in PEM; name the file that has"),
        ("swapped", "server.tls.key: {}/key.pem has no private key in PEM; name the file that has"),
        ("another's", "server.tls.key: {0}/key.pem isn't the key of {0}/cert.pem; name the key that the certificate"),
        ("damaged", "server.tls: OpenSSL refuses {0}/cert.pem and {0}/key.pem ("),
        ("encrypted", "server.tls.key: {}/key.pem needs a passphrase, which nobody can type in; write one"),
        ("everybody's", "server.tls.key: every user of this machine can read {}/key.pem; run chmod o-r on it"),
    ],
)
def test_what_is_wrong_with_the_files(how: str, says: str, tmp_path: Path) -> None:
    configured(tmp_path, free_port())
    spoilt(tmp_path / "_models", how)
    done = ctxgate("serve", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"ctxgate: {says.format(tmp_path / '_models')}")
    doctor = ctxgate("doctor", cwd=tmp_path)
    assert doctor.returncode == 69
    assert f"wrong  tls: {says.format(tmp_path / '_models').partition('; ')[0]}" in doctor.stdout
    assert done.stderr.count("\n") == 1, "neither a traceback nor an address that nobody serves"
