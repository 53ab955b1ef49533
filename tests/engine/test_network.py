"""The way to the first of several machines."""
import socket
import time

import pytest

from mmrla.engine import network

MACHINES = ['--nnodes=2', '--node-rank=1']


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.setenv('GLOO_SOCKET_IFNAME', 'kept')
    monkeypatch.setenv('RDZV_TIMEOUT', '1')


@pytest.fixture
def port():
    """A port that nobody answers at."""
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        yield taken.getsockname()[1]


def test_one_machine_needs_nothing():
    assert network.join_machines(['--nnodes=1', '--master-addr=nowhere.invalid', 'x.py']) == []


def test_a_first_machine_that_does_not_answer_ends_in_one_line(port):
    start = time.monotonic()
    with pytest.raises(SystemExit) as found:
        network.wait_for('127.0.0.1', port, 1)
    assert time.monotonic() - start < 10
    assert f'MASTER_ADDR=127.0.0.1, PORT={port}' in found.value.code
    assert '\n' not in found.value.code and 'firewall' in found.value.code


def test_a_name_without_an_address_ends_in_one_line():
    with pytest.raises(SystemExit, match='MASTER_ADDR=nowhere.invalid has no address'):
        network.join_machines([*MACHINES, '--master-addr=nowhere.invalid'])


def test_the_first_machine_knows_that_it_is_the_host(port):
    """Its host name need not resolve to that address."""
    assert network.join_machines([*MACHINES, f'--rdzv-endpoint=127.0.0.1:{port}']) == [
        '--local-addr=127.0.0.1', '--rdzv-conf=is_host=1,join_timeout=1']


def test_gloo_gets_the_interface_with_the_address(monkeypatch, port):
    monkeypatch.delenv('GLOO_SOCKET_IFNAME')
    network.join_machines([*MACHINES, '--master-addr=127.0.0.1', f'--master-port={port}'])
    assert network.os.environ['GLOO_SOCKET_IFNAME'] == 'lo'
