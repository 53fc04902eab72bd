"""A webhook and receivers that answer, refuse, hang, redirect and speak no HTTP."""

import argparse
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lakelog.jobs.admin.problem_alerts import Webhook, WebhookFailed, webhook_url

SECRET = "/services/T0/B0/secret"


class Receiver(ThreadingHTTPServer):
    """Answers with one status after another, the last one again and again, and keeps what was posted."""

    daemon_threads = True

    def __init__(self, *statuses: int) -> None:
        super().__init__(("127.0.0.1", 0), Posted)
        self.statuses = list(statuses)
        self.posts: list[tuple[str, str, object]] = []
        self.goes_on = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}{SECRET}"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()


class Posted(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posts.append((self.path, self.headers["Content-Type"], json.loads(body)))
        status = self.server.statuses.pop(0) if len(self.server.statuses) > 1 else self.server.statuses[0]
        if status == 0:
            self.server.goes_on.wait()
            return
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", "/another")
        self.end_headers()

    def do_GET(self) -> None:
        self.server.posts.append((self.path, "GET", None))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Prints nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver(200)
    yield made
    made.goes_on.set()
    made.shutdown()
    made.server_close()


def test_an_object_is_posted_as_json(receiver: Receiver) -> None:
    Webhook(receiver.url).post({"text": "é\n", "problems": 1})
    assert receiver.posts == [(SECRET, "application/json", {"text": "é\n", "problems": 1})]


@pytest.mark.parametrize("status", [201, 202, 204])
def test_any_status_of_2xx_is_a_receipt(receiver: Receiver, status: int) -> None:
    receiver.statuses = [status]
    Webhook(receiver.url).post({})


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (500, "it answers 500 Internal Server Error"),
        (404, "it answers 404 Not Found"),
        (429, "it answers 429 Too Many Requests"),
        (599, "it answers 599"),
        (301, "it answers 301 Moved Permanently"),
        (302, "it answers 302 Found"),
        (307, "it answers 307 Temporary Redirect"),
    ],
)
def test_any_other_status_is_a_failure_and_no_redirect_is_followed(
    receiver: Receiver, status: int, words: str
) -> None:  # fmt: skip
    receiver.statuses = [status, 200]
    webhook = Webhook(receiver.url)
    with pytest.raises(WebhookFailed) as error:
        webhook.post({})
    assert str(error.value) == f"http://127.0.0.1:{receiver.server_port}: {words}"
    assert len(receiver.posts) == 1
    webhook.post({})


def test_a_receiver_that_hangs_is_left_and_is_not_asked_twice_at_a_time(receiver: Receiver) -> None:
    receiver.statuses = [0, 200]
    webhook = Webhook(receiver.url)
    webhook.longest = 0.01
    with pytest.raises(WebhookFailed, match="no answer within 0 s"):
        webhook.post({})
    with pytest.raises(WebhookFailed, match="its last answer has not ended yet"):
        webhook.post({})
    assert len(receiver.posts) <= 1


def test_a_receiver_that_is_not_there_is_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(WebhookFailed) as error:
        Webhook(f"http://127.0.0.1:{port}{SECRET}").post({})
    assert str(error.value) == f"http://127.0.0.1:{port}: Connection refused"


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_receiver_that_speaks_another_protocol_is_a_failure(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            client, _ = server.accept()
            with client:
                client.recv(1 << 16)
                client.sendall(b"220 mail.example.com ESMTP\r\n")

        threading.Thread(target=answer, daemon=True).start()
        port = server.getsockname()[1]
        with pytest.raises(WebhookFailed) as error:
            Webhook(f"{scheme}://127.0.0.1:{port}{SECRET}").post({})
    assert str(error.value).startswith(f"{scheme}://127.0.0.1:{port}: ")
    assert "secret" not in str(error.value)


def test_a_certificate_that_the_system_does_not_know_is_refused() -> None:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "self-signed certificate"
    webhook = Webhook(f"https://127.0.0.1{SECRET}")

    def refuses(*_: object, **__: object) -> None:
        raise error

    webhook._opener.open = refuses  # type: ignore[method-assign,assignment]
    with pytest.raises(WebhookFailed, match=r"^https://127\.0\.0\.1: self-signed certificate$"):
        webhook.post({})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "this is no URL"),
        ("secret", "this is no URL"),
        ("https://", "this is no URL"),
        ("https://host:port/secret", "this is no URL"),
        ("https://host:0/secret", "this is no URL"),
        ("https://host/sec\nret", "this is no URL"),
        ("https://host/sec ret", "this is no URL"),
        ("https://host/secreté", "this is no URL"),
        ("https://[::1/secret", "this is no URL"),
        ("ftp://host/secret", "the URL begins with ftp://, not https:// or http://"),
        ("https://user:secret@host/", "a user and a password in the URL are not sent"),
    ],
)
def test_a_bad_url_is_one_sentence_without_its_secret(text: str, words: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as error:
        webhook_url(text)
    given = str(error.value)
    assert given == f"{words}: give one such as https://hooks.example.com/services/T0/B0/secret"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://hooks.example.com/services/secret?token=secret#secret", "https://hooks.example.com"),
        ("http://127.0.0.1:8065/hooks/secret", "http://127.0.0.1:8065"),
    ],
)
def test_messages_name_the_host_of_a_url_only(url: str, name: str) -> None:
    assert Webhook(webhook_url(url)).name == name
