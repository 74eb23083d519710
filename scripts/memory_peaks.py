#!/usr/bin/env python3
"""scripts/memory_peaks.py [--models NAMES] [--stages LIST] [--worlds LIST] [--limit] [--json FILE] [-- OPTIONS]

Compares the memory that the operating system counts with the planned memory, from the start of a run to its exit.
Each case runs `aliquot train` twice: a run that evaluates and saves, then a run that resumes from its checkpoint. The
first case of a model also exports the checkpoint: its bytes do not depend on the case. OPTIONS are added to
`aliquot train`. Prints one row for each run. All values are MiB per rank:

  plan     planned peak of a rank
  empty    memory of the job before the run allocates memory, measured with --dry-run and gpt2-nano
  highest  peak from start to exit of all processes of the job, mpirun included: anonymous memory plus shared memory
  beyond   highest - plan - empty
  phases   the same excess for each phase of the run that exceeded all earlier phases, as the command reports it
  limit    with --limit: the limit of the repeated run, which is 1.1 times the plan plus the empty job

Exit code 1: a run failed, planned and measured memory differ, or an excess is more than 32 MiB. An export has no plan:
its whole peak, without the empty process, must not exceed 32 MiB. Exit code 77: the script cannot create memory cgroups
(it needs root, or a delegated cgroup). Needs several GiB of disk space in the folder for temporary files (TMPDIR).

  --models NAMES   default: gpt2-124m
  --stages LIST    ZeRO stages (default: 0,1,2,3)
  --worlds LIST    KIND:RANKS, where KIND is threads, mpi or nodes. nodes runs each rank on an emulated node, with
                   scripts/cluster.sh. Default: threads:1,threads:2,mpi:1,mpi:2,nodes:2
  --limit          repeats each training run in a cgroup with limited memory. The run must exit with code 0
  --json FILE      appends each row to FILE, one JSON object per line
  --aliquot FILE   the program (default: build/aliquot)
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MIB = 1 << 20
ALLOWED = 32 * MIB
SAMPLE_SECONDS = 0.005


class CgroupError(Exception):
    """The system does not let this process create a memory cgroup."""


class Cgroup:
    """A memory cgroup, version 1 or 2, in which one job runs."""

    def __init__(self):
        self.version = 1 if pathlib.Path("/sys/fs/cgroup/memory/cgroup.procs").exists() else 2
        parent = pathlib.Path("/sys/fs/cgroup/memory" if self.version == 1 else "/sys/fs/cgroup")
        self.path = parent / f"aliquot-{os.getpid()}"
        try:
            if self.version == 2:
                (parent / "cgroup.subtree_control").write_text("+memory")
            self.path.mkdir()
        except OSError as error:
            raise CgroupError(f"cannot create {self.path}: {error.strerror}") from error

    def limit(self, size):
        (self.path / ("memory.limit_in_bytes" if self.version == 1 else "memory.max")).write_text(str(size))

    def highest_usage(self):
        """The peak of all memory that the kernel charged, with page cache and kernel memory. None if unknown."""
        try:
            file = "memory.max_usage_in_bytes" if self.version == 1 else "memory.peak"
            return int((self.path / file).read_text())
        except OSError:
            return None

    def sample(self):
        """Bytes that the kernel cannot drop: anonymous memory and shared memory."""
        names = ("total_rss", "total_shmem") if self.version == 1 else ("anon", "shmem")
        stat = dict(line.split() for line in (self.path / "memory.stat").read_text().splitlines())
        return sum(int(stat[name]) for name in names)

    def kill(self):
        """Kills the processes that are left, and waits until they have ended."""
        procs = self.path / "cgroup.procs"
        while left := procs.read_text().split():
            for process in left:
                try:
                    os.kill(int(process), signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(SAMPLE_SECONDS)

    def remove(self):
        try:
            self.path.rmdir()
        except OSError as error:
            print(f"memory_peaks.py: cannot remove {self.path}: {error.strerror}", file=sys.stderr)


class Job:
    """The result of a command: its exit code, its output and its peak memory."""

    def __init__(self, words, limit=None):
        cgroup = Cgroup()
        try:
            if limit is not None:
                cgroup.limit(limit)
            self._run([str(word) for word in words], cgroup)
        finally:
            cgroup.remove()

    def _run(self, words, cgroup):
        procs = str(cgroup.path / "cgroup.procs")

        def join():
            with open(procs, "w", encoding="ascii") as file:
                file.write(str(os.getpid()))

        self.highest = 0
        ended = threading.Event()

        def watch():
            while not ended.wait(SAMPLE_SECONDS):
                self.highest = max(self.highest, cgroup.sample())

        # join() runs in the child, between fork and exec. This thread starts no other thread before the fork.
        with tempfile.TemporaryFile(mode="w+") as output:
            child = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output,
                                     stderr=subprocess.STDOUT, preexec_fn=join)
            watcher = threading.Thread(target=watch)
            watcher.start()
            try:
                self.code = child.wait()
            finally:
                ended.set()
                watcher.join()
                cgroup.kill()
            output.seek(0)
            self.output = output.read()
        self.usage = cgroup.highest_usage()


def launched(world, aliquot, words):
    """The command line that runs `aliquot` with `words` in a world such as ("threads", 2)."""
    kind, ranks = world
    if kind == "threads":
        return [aliquot, *words, "--ranks", ranks]
    if kind == "mpi":
        return ["mpirun", "--oversubscribe", "-n", ranks, aliquot, *words]
    return ["scripts/cluster.sh", "--nodes", ranks, "--rate", "10gbit", aliquot, *words]


class Report:
    """Prints rows and remembers failures."""

    def __init__(self, json_path):
        self.json_path = json_path
        self.failures = 0
        print(f"{'run':44} {'plan':>8} {'empty':>6} {'highest':>8} {'beyond':>7}  {'limit':>8}  phases", flush=True)

    def row(self, name, problems, **values):
        def cell(key):
            return "-" if values.get(key) is None else f"{values[key] / MIB:.1f}"

        phases = ", ".join(f"{phase} {bytes_ / MIB:.1f}" for phase, bytes_ in values.get("phases", {}).items())
        print(f"{name:44} {cell('plan'):>8} {cell('empty'):>6} {cell('highest'):>8} {cell('beyond'):>7}  "
              f"{cell('limit'):>8}  {phases}", flush=True)
        for problem in problems:
            print(f"  FAILED: {problem}", flush=True)
        self.failures += len(problems)
        if self.json_path:
            with open(self.json_path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"run": name, "problems": problems, **values}) + "\n")


def done_of(metrics):
    """The `done` object at the end of a file of metrics, or None."""
    try:
        lines = metrics.read_text(encoding="utf-8").splitlines()
        return json.loads(lines[-1]).get("done") if lines else None
    except (OSError, ValueError):
        return None


def judge(job, done, world, empty):
    """Returns the problems of a training run and the values of its row, in bytes per rank."""
    if job.code != 0 or done is None:
        return [f"exit code {job.code}\n{job.output[-2000:]}"], {}
    ranks = world[1]
    plan = done["planned_peak"]
    values = {"plan": plan, "empty": empty.highest / ranks, "highest": job.highest / ranks,
              "beyond": (job.highest - empty.highest) / ranks - plan,
              "phases": {phase: peak - done["system_start"] - plan for phase, peak in done["system_phases"].items()}}
    problems = []
    if done["planned"] != done["measured"] or plan != done["measured_peak"]:
        problems.append(f"planned {done['planned']}, measured {done['measured']}")
    if values["beyond"] > ALLOWED:
        problems.append("the job exceeds the plan by more than 32 MiB per rank")
    problems += [f"{phase} exceeds the plan by more than 32 MiB per rank"
                 for phase, excess in values["phases"].items() if excess > ALLOWED]
    return problems, values


class Case:
    """The runs of one model at one ZeRO stage in one world."""

    def __init__(self, arguments, report, model, stage, world, folder):
        self.arguments, self.report, self.world, self.folder = arguments, report, world, folder
        self.name = f"{model} ZeRO {stage} {world[0]}:{world[1]}"
        self.words = ["train", "--quiet", "--threads", "1", "--model", model, "--zero-stage", stage, "--sequence", 64,
                      "--micro-batch", 1, "--data", folder / "data.bytes", *arguments.options]

    def train(self, name, empty, words):
        metrics = self.folder / "metrics.jsonl"
        metrics.unlink(missing_ok=True)

        def command(runs):
            more = ["--checkpoint-dir", self.folder / runs, "--metrics", metrics]
            return launched(self.world, self.arguments.aliquot, [*self.words, *more, *words])

        job = Job(command("runs"))
        problems, values = judge(job, done_of(metrics), self.world, empty)
        if self.arguments.limit and not problems:
            limit = 1.1 * values["plan"] * self.world[1] + empty.usage
            values["limit"] = limit / self.world[1]
            again = Job(command("limited"), int(limit))
            if again.code != 0:
                problems.append(f"exit code {again.code} with the limit\n{again.output[-2000:]}")
        self.report.row(f"{self.name} {name}", problems, **values)

    def export(self):
        aliquot = self.arguments.aliquot
        empty = Job([aliquot, "checkpoint", "--help"])
        job = Job([aliquot, "checkpoint", "export", self.folder / "runs", "--out", self.folder / "hf"])
        beyond = job.highest - empty.highest
        problems = [] if job.code == 0 else [f"exit code {job.code}\n{job.output[-2000:]}"]
        if beyond > ALLOWED:
            problems.append("the export needs more than 32 MiB")
        self.report.row(f"{self.name} export", problems, empty=empty.highest, highest=job.highest, beyond=beyond)

    def run(self, empty, exports):
        self.train("eval, save", empty, ["--steps", 2, "--eval-every", 1, "--eval-batches", 1, "--checkpoint-every", 1,
                                         "--eval-data", self.folder / "data.bytes"])
        self.train("resume, save", empty, ["--steps", 3, "--resume", "auto"])
        if exports:
            self.export()


def empty_job(arguments, world):
    """Runs the command in a world without allocating the memory of a run."""
    words = launched(world, arguments.aliquot, ["train", "--model", "gpt2-nano", "--dry-run", "--threads", 1])
    job = Job(words)
    if job.code != 0:
        sys.exit(f"memory_peaks.py: {' '.join(map(str, words))}: exit code {job.code}\n{job.output[-2000:]}")
    return job


def parse():
    parser = argparse.ArgumentParser(usage=__doc__, add_help=False)
    parser.add_argument("--help", "-h", action="store_true")
    parser.add_argument("--models", default="gpt2-124m")
    parser.add_argument("--stages", default="0,1,2,3")
    parser.add_argument("--worlds", default="threads:1,threads:2,mpi:1,mpi:2,nodes:2")
    parser.add_argument("--limit", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--aliquot", default=str(ROOT / "build/aliquot"))
    parser.add_argument("options", nargs="*")
    arguments = parser.parse_args()
    if arguments.help:
        print(__doc__, end="")
        sys.exit(0)
    worlds = []
    for text in arguments.worlds.split(","):
        kind, _, ranks = text.partition(":")
        if kind not in ("threads", "mpi", "nodes") or not ranks.isdigit() or int(ranks) < 1:
            sys.exit(f"invalid value '{text}' for --worlds: expected threads:RANKS, mpi:RANKS or nodes:RANKS")
        worlds.append((kind, int(ranks)))
    arguments.worlds = worlds
    arguments.aliquot = os.path.abspath(arguments.aliquot)
    return arguments


def main():
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # removes cgroups and temporary files
    report = Report(arguments.json)
    exported = set()
    for world in arguments.worlds:
        try:
            empty = empty_job(arguments, world)
        except CgroupError as error:
            print(f"memory_peaks.py: {error}", file=sys.stderr)
            return 77
        for model in arguments.models.split(","):
            for stage in arguments.stages.split(","):
                folder = pathlib.Path(tempfile.mkdtemp(prefix="aliquot-memory-"))
                try:
                    (folder / "data.bytes").write_bytes(b"Memory is planned to the byte. " * 700)
                    Case(arguments, report, model, stage, world, folder).run(empty, model not in exported)
                    exported.add(model)
                finally:
                    shutil.rmtree(folder)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
