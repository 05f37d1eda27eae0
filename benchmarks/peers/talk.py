"""The two sides of a comparison: one process with both, or two that take turns."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.environment import BUILD, Peer, installed, packages

HERE = Path(__file__).parents[1]


class FaultError(Exception):
    """What a task, or the loading of a peer, raised."""


class OurFaultError(FaultError):
    """The same of reweigh: not something to tell of a peer."""


@dataclass(frozen=True)
class Worker:
    process: subprocess.Popen[str]

    def ask(self, **order: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        line = self.process.stdout.readline()
        if not line:
            raise FaultError(f"the process ended with code {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "fault" in answer:
            raise FaultError(answer["fault"])
        return answer


@dataclass(frozen=True)
class Sides:
    """Which process runs which module's tasks."""

    workers: dict[str, Worker]

    def load(self, folder: Path, **part: int) -> dict[str, list[str]]:
        """The names of the tasks, by module."""
        found: dict[str, list[str]] = {}
        for worker in set(self.workers.values()):
            modules = [name for name, its in self.workers.items() if its is worker]
            found |= worker.ask(load=str(folder), modules=modules, **part)
        return found

    def run(self, module: str, task: str) -> dict[str, Any]:
        try:
            return self.workers[module].ask(run=[module, task])
        except FaultError as fault:
            raise OurFaultError(f"{task}: {fault}") if module == "ours" else fault from None


@contextmanager
def sides(peer: Peer | None) -> Iterator[Sides]:
    """reweigh and, if any, a peer, started; NotInstalledError where the peer cannot be had."""
    python = installed(peer) if peer else None
    started: list[Worker] = []

    def start(interpreter: str, name: str) -> Worker:
        BUILD.mkdir(parents=True, exist_ok=True)
        log = (BUILD / f"{name}.log").open("w", encoding="utf-8")
        command = [interpreter, "-W", "ignore", "-m", "peers.worker"]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=log, text=True, cwd=HERE
        )
        started.append(Worker(process))
        return started[-1]

    try:
        workers = {"ours": start(sys.executable, "ours")}
        if peer and python and peer.one_process:
            workers[peer.module] = workers["ours"]
            workers["ours"].ask(add=str(packages(python)))
        elif peer:
            workers[peer.module] = start(str(python), peer.module)
        yield Sides(workers)
    finally:
        for worker in started:
            assert worker.process.stdin is not None
            worker.process.stdin.close()
            try:
                worker.process.wait(30)
            except subprocess.TimeoutExpired:
                worker.process.kill()
