"""The same log on Spark: in one process, on a standalone cluster, and through Spark Connect.

A master and two workers are started from the pip package as processes that listen on loopback, and
are stopped by their process ids. Each engine is tried by a process of its own (`on_spark.py`). The
one with Spark in itself is the Spark Connect server as well, as a driver with its plugin is.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import fixture
import pytest

import reweigh as rw

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(sys.platform != "linux", reason="the processes are Linux's"),
]

HERE = Path(__file__).parent
INSTALL = (
    "`make test` installs it as root; else `pip install -e '.[spark]'` and, on Debian, `apt-get "
    "install openjdk-17-jre-headless`. `make test SPARK=no` leaves these tests out"
)
PATIENCE = 1200  # seconds: for processes that are stuck, not for those that are slow
# Programs this short are over before thorough compilation and parallel clean-up pay.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SMALL = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "900m",
    "spark.executor.memory": "600m",
}
# Spark's other way: plans that are fixed beforehand, and expressions that are not compiled
PLAIN = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
# what is tried on Spark in one process, and how many things are found right
LOCAL = {"agree": 5, "exact": 5, "history": 5, "faults": 8, "names": 1}
LOCAL |= {"tables": 1, "handed": 1, "kinds": 1}
ELSEWHERE = {"agree": 5, "exact": 5, "history": 5}


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    """Where it could be installed, a cluster that is not there is a failure."""
    if importlib.util.find_spec("pyspark") is None:
        pytest.fail(f"PySpark is not installed: {INSTALL}")
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        pytest.fail(f"Java is not installed: {INSTALL}")
    said = subprocess.run([java, "-version"], capture_output=True, text=True).stderr
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version.group(1)) < 17:
        pytest.fail(f"Spark needs Java 17 or later, and {java} says {said!r}: {INSTALL}")


def spark_home() -> Path:
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def environment(folder: Path, **confs: str) -> dict[str, str]:
    """Everything on loopback, everything written below `folder`."""
    confs = SMALL | {"spark.sql.warehouse.dir": str(folder / "warehouse")} | confs
    options = [f"--conf {name}={value}" for name, value in confs.items()]
    return os.environ | {
        "JAVA_TOOL_OPTIONS": JAVA,
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": " ".join([*options, "pyspark-shell"]),
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)]),
    }


class Process:
    """A process that writes to a file; stopped by its id at the end."""

    def __init__(self, folder: Path, name: str, command: list[str], env: dict[str, str]) -> None:
        self.name, self.log = name, folder / f"{name}.log"
        with self.log.open("wb") as out:
            self.started = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=out, stderr=out, env=env, cwd=folder
            )

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_until(self, ready: Callable[[], Any]) -> Any:
        """What `ready` returns, once it is something."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if found := ready():
                return found
            if self.started.poll() is not None:
                pytest.fail(f"{self.name} has ended: {self.said()[-6000:]}")
            time.sleep(0.1)
        pytest.fail(f"{self.name} took more than {PATIENCE} seconds: {self.said()[-6000:]}")

    def stop(self, gently: float = 0) -> None:
        """End its input, then the process itself."""
        with contextlib.suppress(BrokenPipeError):
            pipe: IO[bytes] | None = self.started.stdin
            assert pipe is not None
            pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.started.wait(gently)
        if self.started.poll() is None:
            self.started.terminate()
        try:
            self.started.wait(30)
        except subprocess.TimeoutExpired:
            self.started.kill()
            self.started.wait()


@contextlib.contextmanager
def daemon(folder: Path, name: str, of: str, arguments: list[str], ready: str) -> Iterator[str]:
    """A master or a worker; what it says when it is ready."""
    command = [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{of}"]
    local = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    process = Process(folder, name, [*command, *local, *arguments], environment(folder))
    try:
        found = process.wait_until(lambda: re.search(ready, process.said()))
        yield found.group(1)
        assert listening(process.started.pid)
        refuse_outsiders(process.started.pid)
    finally:
        process.stop()


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """The address of a master with two workers of one core each."""
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        ready = r"Starting Spark master at (spark://127\.0\.0\.1:\d+)"
        master = stack.enter_context(daemon(folder, "master", "master.Master", [], ready))
        ready = r"Successfully registered with master (\S+)"
        for number in range(2):
            size = ["--cores", "1", "--memory", "700m", "--work-dir", str(folder / f"w{number}")]
            stack.enter_context(
                daemon(folder, f"worker{number}", "worker.Worker", [*size, master], ready)
            )
        yield master


@contextlib.contextmanager
def tried(engine: str, folder: Path, *parts: str, **confs: str) -> Iterator[dict[str, Any]]:
    """What is found right on an engine; its session lives until the end."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, str(HERE / "on_spark.py"), engine, str(folder), *parts]
    process = Process(folder, "script", command, environment(folder, **confs))
    try:
        answer = folder / "said.json"
        process.wait_until(answer.exists)
        yield json.loads(answer.read_text())
        refuse_outsiders(process.started.pid)
    finally:
        process.stop(gently=20)


LOOPBACK = re.compile(r"(0{24}|0{16}FFFF0000)?0100007F:|0{24}01000000:")


def listening(process: int) -> set[str]:
    """Where a process and those that it started listen, in hex as Linux lists it."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    family = {process}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    sockets = set()
    for member in family:
        for handle in Path(f"/proc/{member}/fd").glob("*"):
            with contextlib.suppress(OSError):
                sockets.add(os.readlink(handle))
    rows = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        rows += [row.split() for row in Path(table).read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets}


def refuse_outsiders(process: int) -> None:
    """Nobody outside this machine can reach it."""
    assert [a for a in listening(process) if not LOOPBACK.match(a)] == []


def test_spark_in_one_process_and_through_connect(tmp_path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serving = {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    server, client = tmp_path / "server", tmp_path / "client"
    with tried("local[2]", server, *LOCAL, **serving) as said:
        assert said == LOCAL
        with tried(f"sc://127.0.0.1:{port}", client, *ELSEWHERE) as said:
            assert said == ELSEWHERE


def test_a_standalone_cluster_of_two_workers(tmp_path) -> None:
    parts = ELSEWHERE | {"executors": 2}
    with (
        cluster(tmp_path / "cluster") as master,
        tried(master, tmp_path / "driver", *parts, **PLAIN) as said,
    ):
        assert said == parts


@pytest.mark.parametrize("engine", ["sc://127.0.0.1:9", "spark://127.0.0.1:9,127.0.0.1:8"])
def test_a_server_that_is_not_there_is_said_so_at_once(engine) -> None:
    log = rw.read_log(fixture.table("pairs"), engine=engine, **fixture.READING["pairs"])
    with pytest.raises(rw.ResourceError, match="does not answer"):
        log.describe()
