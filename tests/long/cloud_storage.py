"""Google Cloud Storage on this machine: the soak's object store, with the condition of Google's XML API on puts.

`python -m tests.long.cloud_storage FOLDER` runs the server.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lakelog.verification.s3.server import Response, StoreProcess, StoreServer, serve

_IS_NEW = "x-goog-if-generation-match"
_SOURCE = "x-goog-copy-source"


class CloudStorageServer(StoreServer):
    """Puts only if there is no object where the request expects generation 0. It ignores S3's condition on a put."""

    def answer(self, method: str, url: str, headers: dict[str, str], body: bytes) -> Response:
        """Carries out a request."""
        if method != "GET":
            headers = {name: value for name, value in headers.items() if name != "if-none-match"}
        if headers.get(_IS_NEW) == "0":
            headers["if-none-match"] = "*"
        if _SOURCE in headers:
            headers["x-amz-copy-source"] = headers[_SOURCE]
        return super().answer(method, url, headers, body)


class _CloudStorage(StoreProcess):
    module = "tests.long.cloud_storage"


@contextmanager
def cloud_storage(folder: Path, bucket: str) -> Iterator[dict[str, str]]:
    """Runs the server with an empty bucket. Yields the options of its clients."""
    store = _CloudStorage(folder / bucket, folder / "cloud-storage.log")
    store.start()
    try:
        account = {"gcs_base_url": store.await_options()["AWS_ENDPOINT_URL"], "disable_oauth": True}
        account |= {"client_email": "", "private_key": "", "private_key_id": ""}
        yield {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account), "GOOGLE_ALLOW_HTTP": "true"}
    finally:
        store.kill()


if __name__ == "__main__":
    serve(CloudStorageServer, Path(sys.argv[1]))
