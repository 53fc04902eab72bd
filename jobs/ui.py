"""Serves a web console of a cluster: problems, brokers, topics, records, groups, events and history.

It only reads tables, and needs no Spark and no controller. It asks for no password: everybody
who reaches its address can read all of it, records too. With --allow-changes a user who signs in with the token can
also change topics, settings, leaders, cordons and offsets. It needs the extra `ui`: pip install 'lakelog[ui]'.
"""

from __future__ import annotations

import argparse
import ipaddress
import socket
import threading
from urllib.parse import urlsplit

from lakelog.jobs.cli.addresses import LOOPBACK, Address, cannot_listen, host_name, port_number
from lakelog.jobs.cli.console import OK, log_to_stderr, run, say
from lakelog.jobs.cli.options import Invocation, add_command_config, add_log_format, add_log_level
from lakelog.jobs.cli.settings import settings
from lakelog.jobs.cli.verb_parser import VerbParser, add_cluster, parser_of
from lakelog.jobs.cli.waiting import stop_signals, wait_until
from lakelog.jobs.launch.installed import check_installed
from lakelog.jobs.web.sign_in import origin, token_file

_PORT = 8080
_LOOPBACK_NAMES = ("localhost", LOOPBACK, "[::1]")
_PAUSE = 0.1  # s in which the server hears that it is to stop
_GRACE_SECONDS = 3  # for requests that are under way at the end


def main(argv: list[str]) -> int:
    """The verb."""
    parser = make_parser()
    return run(parser, lambda args: _serve(parser, args), argv)


def make_parser() -> VerbParser:
    """The arguments."""
    parser = parser_of("ui", __doc__)
    add_cluster(parser)
    parser.add_argument(
        "--host", default=LOOPBACK, type=host_name, metavar="HOST",
        help="name or address of this machine at which it listens; whoever reaches it can read all records, so the "
        f"default is {LOOPBACK}",
    )  # fmt: skip
    parser.add_argument(
        "--port", type=port_number, default=_PORT, metavar="N",
        help=f"its port; 0 chooses one that is free; default: {_PORT}",
    )  # fmt: skip
    changes = parser.add_argument_group("to change the cluster, too")
    changes.add_argument(
        "--allow-changes", action="store_true", help="let those who sign in change the cluster; needs --token-file"
    )
    changes.add_argument(
        "--token-file", type=token_file, metavar="FILE",
        help="file with the token for the sign-in, in its only line, that nobody but its owner can read",
    )  # fmt: skip
    changes.add_argument(
        "--origin", type=origin, metavar="URL",
        help="address of the console in browsers, such as https://lake.example.com of a proxy before it; needed if "
        "--host is no loopback address",
    )  # fmt: skip
    add_command_config(parser, "session time-outs if they are not the defaults, and credentials of the roots")
    add_log_level(parser)
    add_log_format(parser)
    return parser


def _serve(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    try:
        check_installed(("ui",), [])
    except ValueError as error:
        parser.error(str(error))
    _check_changes(parser, args)
    import uvicorn  # here, since the extra may be missing

    from lakelog.jobs.web.change_desk import ChangeDesk
    from lakelog.jobs.web.change_pages import ChangePages
    from lakelog.jobs.web.page_kit import Console
    from lakelog.jobs.web.shared_readings import ConsoleReadings
    from lakelog.jobs.web.sign_in import SignIn
    from lakelog.jobs.web.verb_answers import VerbRunner
    from lakelog.jobs.web.web_app import web_app

    log_to_stderr("ui", args.log_level, args.log_format)
    is_signalled = stop_signals()
    readings = ConsoleReadings(args.cluster, settings(args.command_config))
    uri = readings.cluster.get().root.uri  # an error ends the verb before it listens
    with _listening(Address(args.host, args.port)) as listening:
        address = Address(args.host, listening.getsockname()[1])
        is_local = ipaddress.ip_address(listening.getsockname()[0]).is_loopback
        if args.allow_changes and not is_local:
            _check_origin(parser, args)
        if not is_local:
            say(
                f"lakelog: warning: --host {args.host} is no loopback address: whoever reaches {address} can read all "
                "records, topics, groups and settings of the cluster"
            )
        invocation = Invocation.of(args.cluster, uri, args.command_config)
        console = Console(readings, invocation)
        hosts = {*_LOOPBACK_NAMES, _in_header(args.host)} if is_local else None
        desk, changes = None, None
        if args.allow_changes:
            desk = ChangeDesk(readings, invocation, VerbRunner(args.cluster, args.command_config))
            changes = ChangePages(desk, SignIn(args.token_file, dict), args.origin)
            if hosts is not None and args.origin:
                hosts.add(_in_header(urlsplit(args.origin).hostname or ""))
        server = uvicorn.Server(
            uvicorn.Config(
                web_app(console, hosts, changes), log_config=None, access_log=False, server_header=False,
                lifespan="off", proxy_headers=False, ws="none", timeout_graceful_shutdown=_GRACE_SECONDS,
                http="h11", loop="asyncio",
            )
        )  # fmt: skip
        serving = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="ui", daemon=True)
        serving.start()
        wait_until(lambda: server.started or is_signalled() or not serving.is_alive(), pause=_PAUSE)
        say(f"Serving the console of {uri} at http://{address}/")
        if args.allow_changes:
            say("Whoever signs in with the token of --token-file can change the cluster.")
        wait_until(lambda: is_signalled() or not serving.is_alive(), pause=_PAUSE)
        server.should_exit = True
        if desk is not None:
            desk.let_go()
        serving.join(_GRACE_SECONDS + 2)
    if desk is not None and desk.under_way:
        say(
            f"lakelog: warning: {desk.under_way} changes have had no answer: they may still be carried out; "
            f"{invocation.command('controller', '--requests')} shows what has become of requests"
        )
    return OK


def _in_header(host: str) -> str:
    """A host as the header Host has it, without the port."""
    return str(Address(host, 0)).rpartition(":")[0].lower()


def _check_changes(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Nobody changes a cluster without a token."""
    if args.allow_changes and args.token_file is None:
        parser.error("--allow-changes needs --token-file FILE: `(umask 077; openssl rand -hex 32 > FILE)` makes one")
    for name in ("token_file", "origin"):
        if getattr(args, name) is not None and not args.allow_changes:
            parser.error(f"--{name.replace('_', '-')} goes with --allow-changes only")


def _check_origin(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """The header Host is no proof of where a form comes from if every name may lead here."""
    if args.origin is None:
        parser.error(
            f"--allow-changes with --host {args.host}, which is no loopback address, needs --origin URL: the address "
            "at which browsers open the console"
        )
    if args.origin.startswith("http:"):
        say(
            f"lakelog: warning: --origin {args.origin} is not https, so the token and all changes go through the "
            "network as plain text: put a proxy with TLS before the console"
        )


def _listening(address: Address) -> socket.socket:
    """Raises InvalidConfigurationException if it cannot listen there."""
    found = socket.socket(address.family)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen()
    except (OSError, TypeError) as error:  # a TypeError: a name that no host can have
        found.close()
        raise cannot_listen(f"--host and --port {address}", error) from None
    return found
