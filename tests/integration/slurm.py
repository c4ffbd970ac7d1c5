"""A real Slurm in a folder, run as root: munged, MariaDB and the daemons of Slurm.

It has one node, or several nodes on this machine, each with its own slurmd.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

NEEDED = (
    *("munged", "mariadbd", "mariadb-install-db", "mariadb"),
    *("slurmdbd", "slurmctld", "slurmd", "sacctmgr", "sacct", "sbatch", "scontrol"),
)
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
READY_S = 60.0

CONF = """
ClusterName=headway
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
KillWait=1
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_min_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
PreemptType=preempt/qos
PreemptMode=REQUEUE
JobRequeue=1
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={dbd}
AccountingStoragePass={folder}/munge.socket
AccountingStorageEnforce=qos,limits
AccountingStorageTRES=gres/gpu
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
{more}
{nodes}
PartitionName=train Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = """NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} \
CPUs={cpus} Gres=gpu:{gpus} State=UNKNOWN"""
DBD = """
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={dbd}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={sql}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
PidFile={folder}/slurmdbd.pid
LogFile={folder}/slurmdbd.log
"""
ACCOUNTS = (
    "add cluster headway",
    "add qos low",
    "add qos high preempt=low priority=1000",
    "add account ads",
    "add user root account=ads qos=low,high,normal defaultqos=low",
)


def missing() -> str:
    """Why Slurm cannot be started here, or ""."""
    absent = [name for name in NEEDED if shutil.which(name, path=PATH) is None]
    if absent:
        return f"no {', '.join(absent)}: apt-get install slurm-wlm slurmdbd mariadb-server munge"
    return "" if os.geteuid() == 0 else "its daemons are run as root"


class Cluster:
    """A running cluster, and the environment for its programs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {
            **{name: value for name, value in os.environ.items() if "SLURM" not in name},
            "PATH": PATH,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "TZ": "UTC",
        }

    def call(self, *words: str) -> str:
        """The output of a program; AssertionError with its error output if it fails."""
        done = subprocess.run(
            words, env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=30
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def submit(self, script: str, *options: str) -> str:
        """Submit a job with both accelerators and return its number."""
        words = ("--parsable", "--account=ads", "--gres=gpu:2", "--output=/dev/null")
        return self.call("sbatch", *words, f"--wrap={script}", *options).strip()

    def states(self, job: str) -> list[str]:
        """The states of all attempts of a job in the accounting."""
        told = self.call("sacct", "-D", "-X", "-n", "-P", "-j", job, "-o", "State")
        return told.split()

    def logs(self) -> str:
        """The last lines of each daemon."""
        ends = {path.name: path.read_text(errors="replace")[-1500:] for path in self._logs()}
        return json.dumps(ends, indent=1).replace("\\n", "\n")

    def _logs(self) -> list[Path]:
        return sorted(self.folder.glob("*.log"))


def wait(until: Callable[[], Any], what: str, cluster: Cluster, seconds: float = READY_S) -> None:
    """Wait until a condition holds; AssertionError with the logs if it never does."""
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end, f"{what} did not come: {cluster.logs()}"
        time.sleep(0.5)


@contextmanager
def running(
    folder: Path,
    *,
    gpus: int = 2,
    nodes: Sequence[str] = (),
    accounts: Sequence[str] = ACCOUNTS,
    more: Sequence[str] = (),
) -> Iterator[Cluster]:
    """Start a cluster in an empty folder and stop it at the end; `more` are lines of slurm.conf.

    `gpus` is the number per node; without names of nodes there is one, named like this machine.
    """
    cluster = Cluster(folder)
    with ExitStack() as stack:

        def start(*words: str) -> subprocess.Popen[bytes]:
            log = stack.enter_context((folder / f"{words[0]}.out.log").open("ab"))
            process = subprocess.Popen(
                words, env=cluster.env, cwd=folder, stdout=log, stderr=subprocess.STDOUT
            )
            stack.callback(_stop, process)
            return process

        names = tuple(nodes) or (_host(),)
        ctld, dbd, sql, *own = _ports(3 + len(names))
        ports = {"ctld": ctld, "dbd": dbd, "sql": sql}
        _configure(cluster, ports, dict(zip(names, own, strict=True)), gpus, more)
        _munge(cluster, start)
        _database(cluster, start, ports["sql"])
        start("slurmdbd", "-D")
        wait(lambda: _listens(ports["dbd"]), "slurmdbd", cluster)
        for line in accounts:
            cluster.call("sacctmgr", "-i", *line.split())
        start("slurmctld", "-D")
        for name in names:
            start("slurmd", "-D", "-N", name)
        idle = [f"{name} idle" for name in sorted(names)]
        said = ("sinfo", "-h", "-N", "-o", "%N %T")
        wait(lambda: _said(cluster, *said).splitlines() == idle, "all nodes", cluster)
        yield cluster


def _host() -> str:
    return socket.gethostname().partition(".")[0]


def _configure(
    cluster: Cluster, ports: dict[str, int], nodes: dict[str, int], gpus: int, more: Sequence[str]
) -> None:
    folder, host = cluster.folder, _host()
    cpus = max(os.cpu_count() or 1, 2 * gpus)  # nobody asks whether they are there
    each = {"host": host, "cpus": cpus, "gpus": gpus}
    rows = [NODE.format(name=name, port=port, **each) for name, port in nodes.items()]
    told = {"folder": folder, "host": host, "nodes": "\n".join(rows), "more": "\n".join(more)}
    told |= ports
    for name in ("state", "sql", *(f"spool-{name}" for name in nodes)):
        (folder / name).mkdir()
    (folder / "slurm.conf").write_text(CONF.format(**told))
    for number in range(gpus):  # any devices: nobody opens them
        (folder / f"gpu{number}").symlink_to("/dev/null")
    gres = f"AutoDetect=off\nName=gpu File={folder}/gpu[0-{gpus - 1}]\n"
    (folder / "gres.conf").write_text(gres)
    (folder / "slurmdbd.conf").write_text(DBD.format(**told))
    (folder / "slurmdbd.conf").chmod(0o600)
    version = re.search(r"(\d+)\.(\d+)", cluster.call("sacct", "-V"))
    if version is not None and (int(version[1]), int(version[2])) >= (23, 11):
        (folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n")


def _munge(cluster: Cluster, start: Callable[..., Any]) -> None:
    folder = cluster.folder
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    files = {"key-file": key, "socket": folder / "munge.socket", "pid-file": folder / "munge.pid"}
    files |= {"log-file": folder / "munge.log", "seed-file": folder / "munge.seed"}
    start("munged", "-F", "--force", *(f"--{name}={path}" for name, path in files.items()))
    wait((folder / "munge.socket").exists, "munged", cluster)


def _database(cluster: Cluster, start: Callable[..., Any], port: int) -> None:
    data, sock = cluster.folder / "sql", cluster.folder / "sql.socket"
    words = ("--no-defaults", f"--datadir={data}", "--user=root")
    cluster.call("mariadb-install-db", *words, "--auth-root-authentication-method=normal")
    own = (f"--socket={sock}", f"--port={port}", "--bind-address=127.0.0.1", "--skip-name-resolve")
    start("mariadbd", *words, *own, "--innodb-buffer-pool-size=64M")
    ask = ("mariadb", "--no-defaults", f"--socket={sock}", "-u", "root", "-e")
    wait(lambda: _answers(cluster, *ask, "SELECT 1"), "mariadbd", cluster)
    cluster.call(*ask, "CREATE USER slurm@'%' IDENTIFIED BY 'slurm'; GRANT ALL ON *.* TO slurm@'%'")


def _answers(cluster: Cluster, *words: str) -> bool:
    try:
        cluster.call(*words)
    except (AssertionError, subprocess.TimeoutExpired):
        return False
    return True


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def _said(cluster: Cluster, *words: str) -> str:
    try:
        return cluster.call(*words)
    except (AssertionError, subprocess.TimeoutExpired):
        return ""


def free_port() -> int:
    """A port that is not in use."""
    return _ports(1)[0]


def _ports(count: int) -> list[int]:
    """Distinct free ports."""
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in found]


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
