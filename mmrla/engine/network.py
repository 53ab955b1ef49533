"""Find the way to the first of several machines, before torchrun needs it.

This module imports nothing of mmrla or torch: the launcher loads it from its file.
"""
import os
import socket
import struct
import time
from typing import List, Optional, Tuple

# Seconds to wait for another machine, which may be started later; RDZV_TIMEOUT changes it.
TIMEOUT = 300.0
SIOCGIFADDR = 0x8915  # from linux/sockios.h


def join_machines(arguments: List[str]) -> List[str]:
    """Additional arguments of torchrun for a run on several machines.

    The host name of many machines resolves to 127.0.0.1. torchrun and gloo would offer
    that address to the other machines, so they get the address of the interface that
    leads to the first machine.

    Args:
        arguments: The arguments of torchrun.

    Returns:
        list[str]: The arguments to put before them; none for a single machine.
    """
    options = dict(word[2:].split('=', 1) for word in arguments
                   if word.startswith('--') and '=' in word)
    if options.get('nnodes', '1') == '1':
        return []
    host, port = _endpoint(options)
    try:
        target = socket.gethostbyname(host)
    except OSError as error:
        raise SystemExit(f'MASTER_ADDR={host} has no address ({error.strerror}). Set it to the '
                         'name or address of the first machine, the same on all') from None
    own = _own_address(target, port)
    interface = own and _interface(own)
    if interface:
        os.environ.setdefault('GLOO_SOCKET_IFNAME', interface)
    is_first = own == target
    timeout = float(os.environ.get('RDZV_TIMEOUT', TIMEOUT))
    if not is_first:
        wait_for(host, port, timeout)
    found = [f'--local-addr={own}'] if own else []
    if 'rdzv-endpoint' in options:
        found.append(f'--rdzv-conf=is_host={int(is_first)},join_timeout={timeout:.0f}')
    return found


def _endpoint(options: dict) -> Tuple[str, int]:
    host, port = options.get('master-addr'), options.get('master-port', '29500')
    if 'rdzv-endpoint' in options:
        host, _, port = options['rdzv-endpoint'].rpartition(':')
    return host or '127.0.0.1', int(port)


def _own_address(target: str, port: int) -> Optional[str]:
    """The address of this machine on the way to another one; None if there is no way.

    Connecting a datagram socket sends nothing.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, port))
        except OSError:
            return None
        return probe.getsockname()[0]


def _interface(address: str) -> Optional[str]:
    """The network interface with an address (Linux only).

    The kernel connects to an own address through the loopback interface, which has another.
    """
    try:
        import fcntl
    except ImportError:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack('256s', name.encode()[:15]))
            except OSError:  # an interface without an address
                continue
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return None


def wait_for(host: str, port: int, timeout: float) -> None:
    """Wait until the first machine answers; end with one line if it does not.

    Args:
        host: MASTER_ADDR.
        port: PORT.
        timeout: Seconds to wait.
    """
    end = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection((host, port), timeout=5).close()
            return
        except OSError as error:
            reason = error.strerror or 'no answer'
        if time.monotonic() > end:
            raise SystemExit(
                f'the first machine does not answer at MASTER_ADDR={host}, PORT={port} for '
                f'{timeout:g} s ({reason}). Check that its run is started with NODE_RANK=0, that '
                'the address is the same on all machines, and that no firewall closes the port. '
                'RDZV_TIMEOUT sets the seconds to wait') from None
        time.sleep(0.5)
