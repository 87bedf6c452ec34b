"""TLS between a server, its workers and a browser, with a certificate that nobody else has signed."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import httpx2
import numpy as np
import pytest

from art_trainer.cli.access import read_certificate, warn_if_unencrypted
from art_trainer.cli.dash import serving
from art_trainer.distributed.protocol import PROTOCOL_VERSION, Hello
from art_trainer.distributed.worker.connection import Backoff, UnreachableError, open_connection
from art_trainer.distributed.worker.downloads import ArtifactCache
from art_trainer.serving.http.server import Certificate
from tests.art_trainer.distributed.server_helpers import TOKEN, served

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl: apt-get install openssl"),
]
HELLO = Hello(type="hello", protocol=PROTOCOL_VERSION)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=trainer"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(["openssl", *words.split(), *names], check=True, capture_output=True)
    found = read_certificate(cert, key)
    assert found is not None
    return found


def test_a_worker_speaks_tls(
    tmp_path: Path, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.certificate))

    async def talk(url: str) -> str:
        files = ArtifactCache(url, TOKEN, tmp_path / "cache", Backoff(np.random.default_rng(0)))
        try:
            await files.model()
        finally:
            await files.close()
        socket, welcome = await open_connection(url, "w1", TOKEN, HELLO)
        await socket.close()
        return welcome.run.env

    with served(tmp_path, certificate=certificate) as here:
        assert here.server.url.startswith("https://127.0.0.1:")
        assert asyncio.run(talk(here.server.url)) == "toy/Echo-v0"
        plain = here.server.url.replace("https", "http")
        with pytest.raises(httpx2.TransportError):
            httpx2.get(f"{plain}/status", headers={"Authorization": f"Bearer {TOKEN}"}, trust_env=False)


def test_an_untrusted_certificate_is_refused(
    tmp_path: Path, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with served(tmp_path, certificate=certificate) as here:
        url = here.server.url
        with pytest.raises(UnreachableError, match=r"not trusted: self.signed certificate; .*SSL_CERT_FILE"):
            asyncio.run(open_connection(url, "w1", TOKEN, HELLO))
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.certificate))
        with pytest.raises(UnreachableError, match="not trusted: Hostname mismatch") as other:
            asyncio.run(open_connection(url.replace("127.0.0.1", "localhost"), "w1", TOKEN, HELLO))
        assert "SSL_CERT_FILE" not in str(other.value)  # it would not help
    with served(tmp_path / "plain") as here, pytest.raises(UnreachableError, match="answer to http://"):
        asyncio.run(open_connection(here.server.url.replace("http", "https"), "w1", TOKEN, HELLO))


def test_the_dashboard_speaks_tls(
    tmp_path: Path, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ART_SERVER_TOKEN", raising=False)
    trusted = ssl.create_default_context(cafile=certificate.certificate)
    with serving((tmp_path,), certificate=certificate) as url:
        assert url.startswith("https://127.0.0.1:")
        assert httpx2.get(f"{url}api/runs", verify=trusted, trust_env=False).json() == []


def test_a_warning_if_the_connection_is_not_encrypted(capsys: pytest.CaptureFixture[str]) -> None:
    warn_if_unencrypted("127.0.0.1", None)
    warn_if_unencrypted("10.0.0.5", Certificate(Path("cert.pem"), Path("key.pem")))
    assert capsys.readouterr().out == ""
    warn_if_unencrypted("10.0.0.5", None)
    assert "Connections to 10.0.0.5 are not encrypted" in capsys.readouterr().out
