"""The taxonomies: failure categories with owner and retry, names of start stages and of waste."""

from __future__ import annotations

from typing import Final, NamedTuple

# The action that each value of `retry` stands for.
RETRIES = {
    "swap": "replace the node, then restart from the last checkpoint",
    "yes": "restart from the last checkpoint",
    "bounded": "restart, but only a few times without progress",
    "resume": "resubmit the job and resume from the last checkpoint",
    "no": "do not restart until the cause is fixed",
}


class Category(NamedTuple):
    """One kind of failure: `owner` is infra, user, scheduler or ambiguous."""

    owner: str
    retry: str
    meaning: str


CATEGORIES = {
    "gpu_hardware": Category(
        "infra", "swap", "a GPU, its memory or its links failed: ECC, NVLink, fallen off the bus"
    ),
    "gpu_driver": Category(
        "infra", "swap", "the GPU driver or its services on the node failed: no device is visible"
    ),
    "network": Category("infra", "yes", "a link, an adapter or a name server failed"),
    "comm_timeout": Category(
        "ambiguous", "bounded", "a collective timed out waiting for a rank; the cause is not known"
    ),
    "hang": Category("ambiguous", "bounded", "the job was alive but made no progress"),
    "rendezvous": Category(
        "infra", "yes", "the ranks could not connect to each other at the start"
    ),
    "storage": Category("infra", "yes", "a file system or an object store failed to read or write"),
    "disk_full": Category("ambiguous", "no", "no disk space or no quota is left"),
    "preemption": Category(
        "scheduler", "yes", "the scheduler or the cloud provider reclaimed the machines"
    ),
    "time_limit": Category("scheduler", "resume", "the job reached its time limit"),
    "user_cancel": Category("user", "no", "a user stopped the job"),
    "node_failure": Category("infra", "yes", "a whole machine failed or was lost"),
    "platform_start": Category(
        "infra", "bounded", "the container, its image or its volumes could not be set up"
    ),
    "gpu_oom": Category("user", "no", "out of GPU memory"),
    "host_oom": Category("user", "bounded", "out of memory on a host or in a cgroup"),
    "shm_or_fd_limit": Category(
        "user", "no", "out of shared memory, file descriptors, threads or locked memory"
    ),
    "data_pipeline": Category("user", "no", "a sample, or the code that reads samples, is invalid"),
    "checkpoint": Category(
        "user", "no", "a checkpoint is damaged, missing or incompatible: use an older one"
    ),
    "numerics": Category("user", "no", "the loss or its gradients are not finite"),
    "cuda_fault": Category(
        "ambiguous", "bounded", "a kernel did an illegal operation; if it recurs, replace the node"
    ),
    "compile": Category("user", "no", "a kernel or graph compiler failed"),
    "environment": Category(
        "user", "no", "a package, a library or its version is missing or incompatible"
    ),
    "native_crash": Category("ambiguous", "bounded", "a process crashed in native code"),
    "user_code": Category("user", "no", "the program or its arguments are wrong"),
    "unknown": Category("ambiguous", "bounded", "the cause is not known"),
}
OWNERS = {name: (category.owner, category.retry) for name, category in CATEGORIES.items()}


# In the order of a job; reports keep this order.
START_STAGES: Final = (
    "scheduling",
    "hardware_setup",
    "launcher_init",
    "device_init",
    "process_group_init",
    "preproc_creation",
    "train_module_creation",
    "init_plugins",
    "pre_train",
    "get_first_batch_data",
    "checkpoint_load",
    "pt2_compile",
)
TRAINER_STAGES: Final = START_STAGES[3:10]  # device_init to get_first_batch_data
WASTE: Final = ("checkpoint_block", "data_stall", "recompile", "evaluation", "blocked")
