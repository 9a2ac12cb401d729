"""``celery sagas web``: the web view, served for a browser on this machine, or behind a proxy."""

from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

import click

from celery_sagas.cli import tables
from celery_sagas.cli.acts import ACTOR
from celery_sagas.cli.app import opened
from celery_sagas.operate.actors import default_actor

Network = IPv4Network | IPv6Network


def _address(context: click.Context, parameter: click.Parameter, listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]").replace("localhost", "127.0.0.1")
    if not (port.isascii() and port.isdigit() and int(port) < 65_536 and _is_address(host)):
        raise click.BadParameter(f"{tables.line(listen)} is no address and port such as 127.0.0.1:5557")
    return host, int(port)


def _is_address(host: str) -> bool:
    try:
        return bool(ip_address(host))
    except ValueError:
        return False


def _networks(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> list[Network]:
    try:
        return [ip_network(each) for each in given]
    except ValueError as exc:
        raise click.BadParameter(f"{exc}: give a network such as 10.1.0.0/16") from exc


@click.command()
@click.option("--listen", default="127.0.0.1:5557", show_default=True, callback=_address, metavar="ADDRESS:PORT", help="Where.")
@click.option("--act", "may_act", is_flag=True, help="Also act on instances and dead letters; without it, it only reads.")
@click.option("--behind-proxy", "header", metavar="HEADER", help="Let in whom a proxy names in this header.")
@click.option("--trust", "networks", multiple=True, callback=_networks, metavar="CIDR", help="From where the proxy comes.")
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="Behind a proxy: the name by which browsers reach it.")
@ACTOR
@click.pass_context
def web(
    context: click.Context,
    /,
    *,
    listen: tuple[str, int],
    may_act: bool,
    header: str | None,
    networks: list[Network],
    hosts: tuple[str, ...],
    actor: str | None,
) -> None:
    """Show all this in a browser: instances, what does not go on, dead letters, activity and audit.

    It prints a link, which lets one browser in; then another one. It listens on this machine alone, unless a proxy stands before
    it that knows who comes: --behind-proxy with --trust and --host.
    """
    address, port = listen
    if header is None and not ip_address(address).is_loopback:
        raise click.UsageError(f"{address} is open to others: give --behind-proxy HEADER, --trust CIDR and --host NAME, too")
    if bool(header) != bool(networks) or bool(header) != bool(hosts):
        raise click.UsageError("--behind-proxy, --trust and --host belong together")
    with opened(context) as runtime:
        from celery_sagas.web import Access, Level, serving  # which may say that an extra is missing

        level: Level = "act" if may_act else "read"
        try:
            listening = serving.bound(address, port)
        except OSError as exc:
            raise click.ClickException(f"{address}:{port} cannot be had: {exc.strerror}. Choose another with --listen") from exc
        url = f"http://{f'[{address}]' if ':' in address else address}:{listening.getsockname()[1]}"
        if header:
            site = serving.behind_proxy(runtime.app, header, networks, level, hosts)
            click.echo(f"Listening on {url} for whom a proxy names in {header}.")
        else:
            access = Access(level, default_actor() if actor is None else actor)
            site = serving.with_links(runtime.app, access, lambda link: click.echo(f"Open {url}{link}"))
        serving.serve(site, listening)
