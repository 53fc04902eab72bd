"""The HTTP headers of an object, and the rules of its bucket that they name.

obstore returns no such headers, so Python's own HTTP client requests a URL that obstore has signed. The URL is a
secret, because anybody who knows it may read the object for a while: no error contains it.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from http.client import HTTPException
from typing import Literal, NamedTuple, cast
from urllib.error import HTTPError, URLError
from urllib.parse import unquote
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
)

from obstore import sign
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, ObjectStore, S3Store

from lakelog.replication.storage.delta.store_errors import words_of

_VALID = timedelta(minutes=15)  # S3 believes a clock that is off by so much
_TRUE = ("1", "true", "on", "yes", "y")
_LONGEST = 255  # characters that are shown of a header, those of the longest id of a rule
_EXPIRY, _RULE = re.compile(r'expiry-date="([^"]+)"'), re.compile(r'rule-id="([^"]*)"')
_ARCHIVES = ("GLACIER", "DEEP_ARCHIVE")  # of S3; those of other stores can be read at once


class SigningException(Exception):
    """The credentials for a store cannot sign URLs."""


class ObjectRules(NamedTuple):
    """The rules of a bucket for one object, as far as the store names them. A field is empty without such a rule.

    `expires`: the day on which a lifecycle rule deletes the object, such as 2026-12-31. `rule`: the id of that rule.
    `unknown`: the store's answer, if it is not a day. `version`: the id of the object's version, in a bucket with
    versioning. `lock`: until when nobody may delete the object, in words. `storage_class`: the class, or tier, if it
    is named. `archived`: the class or tier from which the object must be restored before it can be read.
    """

    expires: str = ""
    rule: str = ""
    unknown: str = ""
    version: str = ""
    lock: str = ""
    storage_class: str = ""
    archived: str = ""

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> ObjectRules:
        """The rules in the headers of S3's HeadObject, of HEAD in Google's XML API, or of Azure's Get Blob Properties.
        Names of headers are in lower case."""
        expires, rule, unknown = _expiry(headers)
        given = {name: _plain(value) for name, value in headers.items()}
        tier, storage_class = given.get("x-ms-access-tier", ""), given.get("x-amz-storage-class", "")
        archived = given.get("x-amz-archive-status", "")
        if storage_class in _ARCHIVES:
            archived = storage_class
        elif tier == "Archive":
            archived = tier
        version = given.get("x-amz-version-id") or given.get("x-ms-version-id", "")
        return cls(
            expires, rule, unknown,
            "" if version == "null" else version,  # in S3 that of an object which was put without versioning
            _lock(given),
            storage_class or given.get("x-goog-storage-class", "") or tier,
            archived,
        )  # fmt: skip


def _expiry(headers: Mapping[str, str]) -> tuple[str, str, str]:
    """The day on which a rule deletes the object, the id of the rule, and the store's answer if that is not a day."""
    amazon, google = headers.get("x-amz-expiration", ""), headers.get("x-goog-expiration", "")
    if not amazon:
        return _day(google), "", ""
    expiry, rule = _EXPIRY.search(amazon), _RULE.search(amazon)
    if not expiry:
        return "", "", _plain(amazon)  # directory buckets answer NotImplemented
    return _day(expiry[1]), _plain(unquote(rule[1])) if rule else "", ""


def _lock(given: Mapping[str, str]) -> str:
    for until, mode in (
        ("x-amz-object-lock-retain-until-date", "x-amz-object-lock-mode"),
        ("x-goog-object-lock-retain-until-date", "x-goog-object-lock-mode"),
        ("x-ms-immutability-policy-until-date", "x-ms-immutability-policy-mode"),
    ):
        if given.get(until) or given.get(mode):
            return f"until {_day(given.get(until, '')) or 'an unknown day'} ({given.get(mode, 'no mode').lower()})"
    is_held = given.get("x-amz-object-lock-legal-hold") == "ON" or given.get("x-ms-legal-hold") == "true"
    return "until its legal hold is removed" if is_held else ""


def _day(text: str) -> str:
    """The day of a date of HTTP or of ISO 8601; another text stays as it is."""
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            return parse(text).date().isoformat()
        except (ValueError, OverflowError):
            continue
    return _plain(text)


def _plain(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text[:_LONGEST])


def headers_of(store: ObjectStore, key: str, options: Mapping[str, str], seconds: float) -> dict[str, str]:
    """The headers with which a store answers a HEAD of an object; their names are in lower case. `options`: those of
    the store's HTTP client. `seconds`: how long it waits for an answer.

    Raises SigningException if no URL can be signed, FileNotFoundError, and OSError.
    """
    # A URL is signed for its method, but in Azure one for GET holds for HEAD, too, and obstore signs none for HEAD.
    method: Literal["GET", "HEAD"] = "GET" if isinstance(store, AzureStore) else "HEAD"
    try:
        url = sign(cast(S3Store | GCSStore | AzureStore, store), method, key, _VALID)
    except BaseError as error:
        raise SigningException(words_of(error)) from None
    try:
        with _client(options).open(Request(url, method="HEAD"), timeout=seconds) as answer:
            return {name.lower(): value for name, value in answer.headers.items()}
    except (OSError, HTTPException, ValueError) as error:
        failed = _without_url(error)
    raise failed  # outside of the `except`, so that its context is no error with the URL


def _client(options: Mapping[str, str]) -> OpenerDirector:
    """A client with the proxy of a store's options, or that of the environment, and with the store's choice about
    certificates. It follows no redirection, because it would ask another server, and for another object."""
    context = None
    if options.get("allow_invalid_certificates", "").lower() in _TRUE:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    proxy = options.get("proxy_url")
    client = OpenerDirector()
    for handler in (
        ProxyHandler({"http": proxy, "https": proxy} if proxy else None),
        HTTPHandler(), HTTPSHandler(context=context), UnknownHandler(),
        HTTPErrorProcessor(), HTTPDefaultErrorHandler(),
    ):  # fmt: skip
        client.add_handler(handler)
    return client


def _without_url(error: Exception) -> OSError:
    if isinstance(error, HTTPError):
        error.close()
        if error.code == HTTPStatus.NOT_FOUND:
            return FileNotFoundError("status code: 404 Not Found")
        known = {status.value: status.phrase for status in HTTPStatus}
        return OSError(f"status code: {error.code} {known.get(error.code, '')}".rstrip())
    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, OSError):
        return OSError(cause.strerror or str(cause) or type(cause).__name__)
    if isinstance(cause, str):  # such as that of a proxy whose scheme Python's client does not know
        return OSError(cause.partition("?")[0])
    name = type(cause).__name__  # the texts of some have the URL
    return OSError(
        f"it gives no answer in HTTP that can be read ({name})" if isinstance(cause, HTTPException) else name
    )
