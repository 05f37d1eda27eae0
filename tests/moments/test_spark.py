"""The same log on Spark: in this process, on a standalone cluster, and through Spark Connect.

`make test-all` runs these. A master and two workers, and a Connect server, are started from the
pip package as processes that listen on loopback, and are stopped by their process ids. Each engine
is tried by a process of its own (this file as a script), because a process has one Spark session.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.spark

HERE = Path(__file__).parent
SMALL = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.ui.enabled": "false",
    "spark.executor.memory": "600m",
    "spark.sql.warehouse.dir": "/nonexistent",
}


# what the script does on Spark in one process, and how many things it finds right
LOCAL = {"agree": 4, "estimates": 6, "exact": 5, "faults": 5, "names": 1, "tables": 1, "handed": 1}


def spark_home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def environment(folder: Path) -> dict[str, str]:
    """Everything on loopback, everything written below `folder`."""
    confs = [f"--conf {name}={value}" for name, value in SMALL.items() if "warehouse" not in name]
    confs.append(f"--conf spark.sql.warehouse.dir={folder / 'warehouse'}")
    return os.environ | {
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_NO_DAEMONIZE": "1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": " ".join([*confs, "pyspark-shell"]),
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)]),
    }


@contextlib.contextmanager
def process(folder: Path, name: str, command: list[str], ready: str) -> Iterator[str]:
    """A process of Spark, until it has said that it is ready; stopped by its id at the end."""
    log = folder / f"{name}.log"
    with log.open("wb") as out:
        started = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=environment(folder), cwd=folder
        )
        try:
            for _ in range(600):
                found = re.search(ready, log.read_text(errors="replace"))
                if found:
                    break
                assert started.poll() is None, log.read_text(errors="replace")
                time.sleep(0.1)
            else:
                pytest.fail(f"{name} is not ready: {log.read_text(errors='replace')}")
            yield found.group(1)
        finally:
            started.terminate()
            started.wait(30)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[str]:
    """The address of a master with two workers of one core each."""
    folder = tmp_path_factory.mktemp("cluster")
    run = [str(spark_home() / "bin" / "spark-class"), "org.apache.spark.deploy"]
    local = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(
            process(
                folder,
                "master",
                [run[0], f"{run[1]}.master.Master", *local],
                r"Starting Spark master at (spark://127\.0\.0\.1:\d+)",
            )
        )
        for number in range(2):
            size = ["--cores", "1", "--memory", "700m", "--work-dir", str(folder / f"w{number}")]
            stack.enter_context(
                process(
                    folder,
                    f"worker{number}",
                    [run[0], f"{run[1]}.worker.Worker", *local, *size, master],
                    r"Successfully registered with master (\S+)",
                )
            )
        yield master


@pytest.fixture(scope="module")
def connect(tmp_path_factory) -> Iterator[str]:
    """The address of a Spark Connect server."""
    folder = tmp_path_factory.mktemp("connect")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    confs = SMALL | {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    command = [str(spark_home() / "bin" / "spark-submit"), "--master", "local[2]"]
    for name, value in confs.items():
        command += ["--conf", f"{name}={value}"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    ready = r"Spark Connect server started at: .*?:(\d+)"
    with process(folder, "connect", [*command, "spark-internal"], ready) as found:
        assert found == str(port)
        yield f"sc://127.0.0.1:{port}"


def tried(engine: str, folder: Path, *parts: str) -> dict[str, Any]:
    """What this file's script says about an engine."""
    done = subprocess.run(
        [sys.executable, __file__, engine, str(folder), *parts],
        capture_output=True,
        text=True,
        env=environment(folder),
        timeout=540,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_spark_in_this_process(tmp_path) -> None:
    said = tried("local[2]", tmp_path, *LOCAL)
    assert said == LOCAL


def test_a_standalone_cluster_of_two_workers(cluster, tmp_path) -> None:
    said = tried(cluster, tmp_path, "agree", "exact", "executors")
    assert said == {"agree": 4, "exact": 5, "executors": 2}


def test_spark_connect(connect, tmp_path) -> None:
    said = tried(connect, tmp_path, "agree", "exact")
    assert said == {"agree": 4, "exact": 5}


@pytest.mark.parametrize("engine", ["sc://127.0.0.1:9", "spark://127.0.0.1:9,127.0.0.1:8"])
def test_a_server_that_is_not_there_is_said_so_at_once(engine) -> None:
    import fixture

    import reweigh as rw

    log = rw.read_log(fixture.table("pairs"), engine=engine, **fixture.READING["pairs"])
    with pytest.raises(rw.ResourceError, match="does not answer"):
        log.describe()


# ---- the script --------------------------------------------------------------------------------


def agree(engine: str, folder: Path) -> int:
    """Every variant, from files and from memory, has the sums that it has in memory."""
    import fixture

    import reweigh as rw

    for i, variant in enumerate(fixture.VARIANTS):
        reading = fixture.READING[variant]
        data = fixture.table(variant) if i % 2 else fixture.write(folder, variant)
        target = fixture.policies(variant)[("table", "steps", "column")[i % 3]]
        expected = rw.moments(rw.read_log(fixture.table(variant), **reading), target, blocks=7)
        found = rw.moments(rw.read_log(data, engine=engine, **reading), target, blocks=7)
        fixture.assert_same(found, expected)
    return len(fixture.VARIANTS)


def estimates(engine: str, folder: Path) -> int:
    """The same estimates, standard errors and refusals."""
    import fixture
    import pytest

    import reweigh as rw

    names = ["mis", "mis-plain", "is", "wis", "dm", "dr"]
    target = fixture.policies("whole")["table"]
    log = rw.read_log(fixture.table("whole"), engine=engine, **fixture.READING["whole"])
    found = rw.evaluate_all(log, target, names)
    [blocks] = {mine.moments.about.blocks for mine in found if isinstance(mine, rw.Estimate)}
    memory = rw.read_log(fixture.table("whole"), **fixture.READING["whole"])
    sums = rw.moments(memory, target, blocks=blocks)
    count = 0
    for mine, other in zip(found, rw.evaluate_all(sums, None, names), strict=True):
        assert type(mine) is type(other)
        if isinstance(mine, rw.Estimate):
            assert mine.value == pytest.approx(other.value, rel=1e-9)
            assert mine.error_method == other.error_method
            if other.standard_error is not None:
                assert mine.standard_error == pytest.approx(other.standard_error, rel=1e-9)
        else:
            assert mine.error.code == other.error.code
        count += 1
    return count


def exact(engine: str, folder: Path) -> int:
    """The exactly enumerated value of a tiny world."""
    import fixture
    import pytest
    from population import TARGET, population_log, random_world

    import reweigh as rw

    world = random_world(3, horizon=2, ends=1)
    whole = rw.read_log(
        population_log(world).source.table,
        engine=engine,
        target_prob="target_prob",
        next_state="next_state",
        **fixture.FLAGS,
        horizon=world.horizon,
        hidden="allow",
    )
    results = rw.evaluate_all(whole, TARGET, ["mis", "mis-plain", "is", "wis", "dm"])
    for result in results:
        assert isinstance(result, rw.Estimate)
        assert result.value == pytest.approx(float(world.value(world.target)), rel=1e-12)
    return len(results)


def faults(engine: str, folder: Path) -> int:
    import test_ibis

    names = (
        "rows after the end",
        "short",
        "several",
        "no numbers",
        "no fault",
    )
    for name in names:
        data, reading = test_ibis.EVERY_FAULT[name]
        mine = test_ibis.told(data, engine, reading)
        assert mine == test_ibis.told(data, "arrays", reading), (name, mine)
    return len(names)


def names(engine: str, folder: Path) -> int:
    """Hostile names of columns and files."""
    import fixture
    import pyarrow.parquet as pq
    import test_ibis

    import reweigh as rw

    rows = fixture.table("whole")
    rows = rows.rename_columns([test_ibis.HOSTILE[name] for name in rows.column_names])
    target = rw.ColumnPolicy(test_ibis.HOSTILE["pi"])
    pq.write_table(rows, folder / "a [x]{y}*;--.parquet")
    pq.write_table(rows, folder / "a xy;--.parquet")
    log = rw.read_log(folder / "a [x]{y}*;--.parquet", engine=engine, **test_ibis.HOSTILE_READING)
    expected = rw.moments(rw.read_log(rows, **test_ibis.HOSTILE_READING), target)
    fixture.assert_same(rw.moments(log, target), expected)
    return 1


def tables(engine: str, folder: Path) -> int:
    """A table of Spark's catalogue."""
    import fixture

    import reweigh as rw
    from reweigh.moments.engines.ibis_spark import spark_session

    session = spark_session(engine)
    session.createDataFrame(fixture.table("integers")).createOrReplaceTempView("steps")
    log = rw.read_log(None, engine=engine, table="steps", **fixture.READING["integers"])
    memory = rw.read_log(fixture.table("integers"), **fixture.READING["integers"])
    target = fixture.policies("integers")["table"]
    fixture.assert_same(rw.moments(log, target), rw.moments(memory, target))
    assert [t.name for t in session.catalog.listTables()] == ["steps"]  # nothing of ours is left
    absent = rw.read_log(None, engine=engine, table="stepps", **fixture.READING["integers"])
    with pytest.raises(rw.UsageError, match="stepps"):
        absent.describe()
    return 1


def handed(engine: str, folder: Path) -> int:
    """An Ibis table of Spark."""
    import fixture
    import ibis

    import reweigh as rw
    from reweigh.moments.engines.ibis_spark import spark_session

    session = spark_session(engine)
    session.createDataFrame(fixture.table("pairs")).createOrReplaceTempView("visits")
    table = ibis.pyspark.connect(session).table("visits")
    target = fixture.policies("pairs")["table"]
    found = rw.moments(rw.read_log(table, **fixture.READING["pairs"]), target)
    memory = rw.read_log(fixture.table("pairs"), **fixture.READING["pairs"])
    fixture.assert_same(found, rw.moments(memory, target))
    return 1


def executors(engine: str, folder: Path) -> int:
    """How many workers took part: both, because each has one core."""
    from reweigh.moments.engines.ibis_spark import spark_session

    status = spark_session(engine).sparkContext._jsc.sc().statusTracker()
    return len(status.getExecutorInfos()) - 1  # the driver is listed too


if __name__ == "__main__":
    wanted = sys.argv[3:]
    print(json.dumps({part: globals()[part](sys.argv[1], Path(sys.argv[2])) for part in wanted}))
