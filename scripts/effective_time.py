#!/usr/bin/env python3
"""scripts/effective_time.py [--minutes M] [--ranks LIST] [--kill-every S] [--world mpi|threads] [-- OPTIONS]

Measures how much of the time a run makes progress while its ranks are killed, and what a restart costs. For each number
of ranks, trains under scripts/run_until_done.sh. After the first checkpoint it trains for M more minutes, and kills a
random rank every S seconds. OPTIONS are added to `aliquot train`. Prints one row for each number of ranks, in seconds
per restart:

  kills      number of kills
  share      steps that the run kept, times the time of a step, divided by the whole time
  detect     from the kill until the launcher has ended
  wait       pause of run_until_done.sh
  start      from the start of the launcher until the ranks have planned their step
  load       until the first step begins: memory, initial values, reading of the checkpoint
  first      first step, less the time of a step
  lost       steps that were repeated, because no checkpoint had them yet
  at 600 s   the share with one kill in ten minutes that these costs give: 1 - (sum of the costs) / 600

The time of a step is the median of all steps. Times of a phase are medians over the restarts. Exit code 1: no restart
reached a step, or the share at one kill in ten minutes is below 0.97.

  --minutes M      minutes for each number of ranks, from its first checkpoint (default: 5)
  --ranks LIST     default: 2,4,8
  --kill-every S   seconds between kills (default: 60)
  --world KIND     mpi: processes under mpirun; threads: one process, which is killed (default: mpi)
  --save-every S   seconds between checkpoints, about (default: 5). A kill loses half of them on average
  --json FILE      appends each row to FILE, one JSON object per line
  --aliquot FILE   the program (default: build/aliquot)
"""
import argparse
import glob
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

POLL_SECONDS = 0.01
FIRST_CHECKPOINT_SECONDS = 180  # waits at most this long for the first checkpoint
LEAST_SHARE = 0.97  # with one kill in ten minutes
MODEL = ["--layers", "2", "--width", "128", "--heads", "4", "--sequence", "64", "--micro-batch", "1", "--threads", "1"]


def parse_arguments():
    parser = argparse.ArgumentParser(usage=__doc__, add_help=True)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--kill-every", type=float, default=60)
    parser.add_argument("--world", choices=["mpi", "threads"], default="mpi")
    parser.add_argument("--save-every", type=float, default=5)
    parser.add_argument("--json")
    parser.add_argument("--aliquot", default="build/aliquot")
    parser.add_argument("options", nargs="*")
    return parser.parse_args()


class MetricsReader:
    """Reads a metrics file while a run writes it. The file need not exist yet."""

    def __init__(self, path):
        self.path, self.position, self.part = path, 0, b""

    def new_records(self):
        """The objects of the lines that were completed since the last call."""
        try:
            with open(self.path, "rb") as file:
                if os.fstat(file.fileno()).st_size < self.position:  # a run that cannot resume empties the file
                    self.position, self.part = 0, b""
                file.seek(self.position)
                added = file.read()
        except FileNotFoundError:
            return []
        self.position += len(added)
        *lines, self.part = (self.part + added).split(b"\n")
        return [record for record in map(self.parsed, lines) if record is not None]

    @staticmethod
    def parsed(line):
        """The object in `line`, or None: a run that is killed may leave a line incomplete."""
        try:
            record = json.loads(line)
        except ValueError:
            return None
        return record if isinstance(record, dict) else None


class Run:
    """A supervised run. Two threads record when its messages and the lines of its metrics appear."""

    def __init__(self, arguments, ranks, folder, save_steps):
        self.folder, self.metrics_path = folder, os.path.join(folder, "metrics.jsonl")
        self.began = time.monotonic()
        self.messages, self.records, self.ended = [], [], False
        train = [arguments.aliquot, "train", "--quiet", *MODEL, "--global-batch", "16", "--steps", "100000000",
                 "--schedule", "constant", "--timeout", "60", "--checkpoint-dir", os.path.join(folder, "saved"),
                 "--checkpoint-every", str(save_steps), "--keep", "2", "--metrics", self.metrics_path,
                 *arguments.options]
        if arguments.world == "mpi":
            train = ["mpirun", "--oversubscribe", "-n", "{ranks}", *train]
        else:
            train += ["--ranks", "{ranks}"]
        supervisor = os.path.join(os.path.dirname(os.path.realpath(__file__)), "run_until_done.sh")
        variables = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen([supervisor, "--ranks", str(ranks), "--", *train], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                        start_new_session=True, env={**os.environ, **variables})
        self.threads = [threading.Thread(target=self.read_messages), threading.Thread(target=self.read_metrics)]
        for thread in self.threads:
            thread.start()

    def now(self):
        return time.monotonic() - self.began

    def read_messages(self):
        for line in self.process.stderr:
            self.messages.append((self.now(), line.rstrip()))

    def read_metrics(self):
        reader = MetricsReader(self.metrics_path)
        while not self.ended:
            self.records += [(self.now(), record) for record in reader.new_records()]
            time.sleep(POLL_SECONDS)

    def has_checkpoint(self):
        return bool(glob.glob(os.path.join(self.folder, "saved", "step-*")))

    def rank_processes(self):
        """The processes of aliquot train that use this run's metrics file. Under mpirun these are the ranks."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
            except OSError:
                continue
            if words[0].endswith(b"aliquot") and self.metrics_path.encode() in words:
                found.append(int(name))
        return found

    def kill_a_rank(self):
        """Kills a random rank. Returns when, or None if no rank exists now."""
        ranks = self.rank_processes()
        if not ranks:
            return None
        when = self.now()
        try:
            os.kill(random.choice(ranks), signal.SIGKILL)
        except ProcessLookupError:
            return None
        return when

    def end(self):
        """Asks the run to save and end. Kills it after half a minute."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.ended = True
        for thread in self.threads:
            thread.join(timeout=5)


def first_after(events, when, accept):
    return next(((at, what) for at, what in events if at > when and accept(what)), None)


def restart_costs(run, killed, step_seconds):
    """The phases of the restart after a kill, or None if the run did not reach a step again."""
    ended = first_after(run.messages, killed, lambda line: "; waiting " in line)
    again = ended and first_after(run.messages, ended[0], lambda line: "starting again" in line)
    planned = again and first_after(run.records, again[0], lambda record: "run" in record)
    step = planned and first_after(run.records, planned[0], lambda record: "step" in record)
    if not step:
        return None
    before = [record["step"] for at, record in run.records if at < again[0] and "step" in record]
    repeated = max(0, max(before, default=0) - step[1]["step"] + 1)
    first = step[1]["step_seconds"]
    return {"detect": ended[0] - killed, "wait": again[0] - ended[0], "start": planned[0] - again[0],
            "load": step[0] - planned[0] - first, "first": max(0.0, first - step_seconds),
            "lost": repeated * step_seconds}


def measured_step_seconds(arguments, ranks, folder):
    """The median step time of a short undisturbed run."""
    run = Run(arguments, ranks, folder, 1000000)
    while run.now() < 30 and sum("step" in record for _, record in run.records) < 60:
        time.sleep(0.1)
    run.end()
    steps = [record["step_seconds"] for _, record in run.records if "step" in record]
    if not steps:
        sys.exit("effective_time.py: the run made no step: " + "; ".join(line for _, line in run.messages[-3:]))
    return statistics.median(steps[5:] or steps)


def wait_for_checkpoint(run):
    """Waits, because a run that is killed before its first checkpoint does not resume: it begins again."""
    while not run.has_checkpoint() and run.process.poll() is None:
        if run.now() > FIRST_CHECKPOINT_SECONDS:
            run.end()
            sys.exit(f"effective_time.py: the run saved no checkpoint in {FIRST_CHECKPOINT_SECONDS} s")
        time.sleep(POLL_SECONDS)


def kill_ranks(run, arguments):
    """Kills a rank every --kill-every seconds, for --minutes. Returns the times of the kills."""
    end, next_kill, kills = run.now() + 60 * arguments.minutes, run.now() + arguments.kill_every / 2, []
    while run.now() < end and run.process.poll() is None:
        killed = run.kill_a_rank() if run.now() >= next_kill else None
        if killed is not None:
            kills.append(killed)
            next_kill += arguments.kill_every
        time.sleep(0.05)
    return kills


def measure(arguments, ranks):
    folder = tempfile.mkdtemp(prefix="aliquot-effective-")
    try:
        os.mkdir(os.path.join(folder, "alone"))
        alone = measured_step_seconds(arguments, ranks, os.path.join(folder, "alone"))
        run = Run(arguments, ranks, folder, max(1, round(arguments.save_every / alone)))
        wait_for_checkpoint(run)
        kills = kill_ranks(run, arguments)
        whole = run.now()
        ended_early = run.process.poll() is not None
        run.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if ended_early:
        sys.exit("effective_time.py: the run ended: " + "; ".join(line for _, line in run.messages[-3:]))
    return row_of(run, ranks, kills, whole)


def row_of(run, ranks, kills, whole):
    steps = [record for at, record in run.records if "step" in record and at <= whole]
    step_seconds = statistics.median(record["step_seconds"] for record in steps)
    kept = max(record["step"] for record in steps)
    restarts = [cost for cost in (restart_costs(run, when, step_seconds) for when in kills) if cost]
    row = {"ranks": ranks, "kills": len(kills), "restarts": len(restarts), "step_seconds": step_seconds,
           "share": kept * step_seconds / whole}
    for phase in restarts[0] if restarts else []:
        row[phase] = statistics.median(cost[phase] for cost in restarts)
    cost = sum(value for name, value in row.items() if name in (restarts[0] if restarts else {}))
    row["share_at_600_s"] = 1 - cost / 600
    return row


def main():
    arguments = parse_arguments()
    phases = ["detect", "wait", "start", "load", "first", "lost"]
    enough = True
    print("ranks  kills  step ms  share  " + "  ".join(f"{name:>6}" for name in phases) + "  at 600 s", flush=True)
    for ranks in map(int, arguments.ranks.split(",")):
        row = measure(arguments, ranks)
        costs = "  ".join(f"{row.get(name, float('nan')):6.2f}" for name in phases)
        print(f"{ranks:5}  {row['kills']:5}  {1000 * row['step_seconds']:7.1f}  {row['share']:5.3f}  {costs}  "
              f"{row['share_at_600_s']:8.4f}", flush=True)
        enough = enough and row["restarts"] > 0 and row["share_at_600_s"] >= LEAST_SHARE
        if arguments.json:
            with open(arguments.json, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
