"""The same sums on a PostgreSQL server, as an example of a warehouse that Ibis speaks to.

The server comes from Debian's package, listens on loopback only, lives in a temporary folder as a
user that is not root, and is stopped by its process id.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fixture
import pytest
from population import TARGET, population_log, random_world

import reweigh as rw

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.filterwarnings("ignore::reweigh.ReweighWarning"),
    # of Ibis and pandas among themselves
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def programs() -> Path:
    """Where initdb and postgres are; as root, Debian's package is installed if it is missing."""
    for _ in range(2):
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
        if found:
            return found[-1].parent
        if os.geteuid() == 0 and shutil.which("apt-get"):
            subprocess.run(["apt-get", "install", "-y", "-q", "postgresql"], check=True)
    pytest.fail("PostgreSQL is not installed: apt-get install postgresql")


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, Any]]:
    """How to connect to a server of one's own."""
    # not below pytest's folder, which only its owner may enter
    with tempfile.TemporaryDirectory(prefix="reweigh-postgres-") as folder:
        yield from serve(programs(), Path(folder))


def serve(binaries: Path, folder: Path) -> Iterator[dict[str, Any]]:
    user = "postgres" if os.geteuid() == 0 else None
    password = secrets.token_hex(16)
    (folder / "password").write_text(password)
    if user is not None:
        owner = pwd.getpwnam(user)
        for path in (folder, folder / "password"):
            os.chown(path, owner.pw_uid, owner.pw_gid)
    data = folder / "data"
    how: dict[str, Any] = {"user": user, "cwd": folder, "stdin": subprocess.DEVNULL}
    subprocess.run(
        [binaries / "initdb", "-D", data, "-U", "reweigh", "-A", "scram-sha-256", "-E", "UTF8",
         "--locale=C.UTF-8", "--pwfile", folder / "password", "-N"],
        check=True, capture_output=True, **how,
    )  # fmt: skip
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        [binaries / "postgres", "-D", data, "-p", str(port), "-c", "listen_addresses=127.0.0.1",
         "-c", f"unix_socket_directories={folder}", "-c", "fsync=off"],
        stdout=log, stderr=log, **how,
    )  # fmt: skip
    try:
        for _ in range(300):
            assert process.poll() is None, (folder / "log").read_text()
            if "ready to accept connections" in (folder / "log").read_text():
                break
            time.sleep(0.1)
        yield {
            "host": "127.0.0.1",
            "port": port,
            "user": "reweigh",
            "password": password,
            "database": "postgres",
        }
    finally:
        process.send_signal(signal.SIGINT)  # stops without waiting for clients
        process.wait(30)
        log.close()


@pytest.fixture
def connection(server) -> Iterator[Any]:
    import ibis

    connected = ibis.postgres.connect(**server)
    yield connected
    connected.disconnect()


@pytest.mark.parametrize(
    ("variant", "policy"),
    [("everything", "table"), ("whole", "steps"), ("integers", "column"), ("pairs", "table")],
)
def test_the_sums_are_those_in_memory(connection, variant, policy) -> None:
    table = connection.create_table(f"steps_{variant}", fixture.table(variant))
    target = fixture.policies(variant)[policy]
    found = rw.moments(rw.read_log(table, **fixture.READING[variant]), target, blocks=7)
    memory = rw.read_log(fixture.table(variant), **fixture.READING[variant])
    expected = rw.moments(memory, target, blocks=7)
    fixture.assert_same(found, expected)
    assert found.about == expected.about  # also that these are the same episodes


def test_the_exactly_enumerated_value(connection) -> None:
    world = random_world(3, horizon=2, ends=1)
    table = connection.create_table("population", population_log(world).source.table)
    log = rw.read_log(
        table,
        target_prob="target_prob",
        next_state="next_state",
        **fixture.FLAGS,
        horizon=world.horizon,
        hidden="allow",
    )
    for result in rw.evaluate_all(log, TARGET, ["mis", "mis-plain", "is", "wis", "dm"]):
        assert isinstance(result, rw.Estimate)
        assert result.value == pytest.approx(float(world.value(world.target)), rel=1e-12)


@pytest.mark.parametrize("case", ["short", "several", "rows after the end", "percentages"])
def test_the_faults_are_those_in_memory(connection, case) -> None:
    import test_ibis

    data, reading = test_ibis.EVERY_FAULT[case]
    table = connection.create_table(f"faulty {case}", data)
    expected = test_ibis.told(data, "arrays", reading, numbered=False)
    assert expected
    assert test_ibis.told(table, "auto", reading, numbered=False) == expected
