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

from art_trainer.commands.certificates import certificate_of, in_the_open
from art_trainer.commands.dashboard import DashRequest, serving
from art_trainer.remote.backoff import Backoff
from art_trainer.remote.client import open_connection
from art_trainer.remote.downloads import ServerFiles
from art_trainer.remote.messages import PROTOCOL_VERSION, Hello
from art_trainer.remote.worker_errors import UnreachableError
from art_trainer.web.thread import Certificate
from tests.art_trainer.remote.server_helpers import TOKEN, served

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
HELLO = Hello(type="hello", protocol=PROTOCOL_VERSION)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=trainer"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(["openssl", *words.split(), *names], check=True, capture_output=True)
    found = certificate_of(cert, key)
    assert found is not None
    return found


def test_a_worker_speaks_tls_with_a_certificate_that_it_was_told_of(
    tmp_path: Path, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.certificate))

    async def talk(url: str) -> tuple[str, int]:
        files = ServerFiles(url, TOKEN, tmp_path / "cache", Backoff(np.random.default_rng(0)))
        try:
            manifest = await files.model()
        finally:
            await files.close()
        connection = await open_connection(url, "w1", TOKEN, HELLO)
        await connection.close()
        return connection.welcome.run.env, len(manifest.files)

    with served(tmp_path, certificate=certificate) as here:
        assert here.server.url.startswith("https://127.0.0.1:")
        assert asyncio.run(talk(here.server.url)) == ("toy/Echo-v0", 1)
        plain = here.server.url.replace("https", "http")
        with pytest.raises(httpx2.TransportError):
            httpx2.get(f"{plain}/status", headers={"Authorization": f"Bearer {TOKEN}"}, trust_env=False)


def test_a_certificate_that_nobody_vouches_for_is_refused_with_what_helps(
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


def test_the_dashboard_of_finished_runs_speaks_tls_too(
    tmp_path: Path, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ART_SERVER_TOKEN", raising=False)
    trusted = ssl.create_default_context(cafile=certificate.certificate)
    with serving(DashRequest((tmp_path,), certificate=certificate)) as url:
        assert url.startswith("https://127.0.0.1:")
        assert httpx2.get(f"{url}api/runs", verify=trusted, trust_env=False).json() == []


def test_what_goes_in_the_open_is_said() -> None:
    told = in_the_open("10.0.0.5", None)
    assert told is not None
    assert "Nothing is encrypted on the way to 10.0.0.5" in told
    assert in_the_open("127.0.0.1", None) is None
    assert in_the_open("10.0.0.5", Certificate(Path("cert.pem"), Path("key.pem"))) is None
