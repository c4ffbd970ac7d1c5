"""The taxonomies: failure categories with owner and retry, names of start stages and of waste."""

from __future__ import annotations

from typing import Final, NamedTuple

# What each word of `retry` asks for.
RETRIES = {
    "swap": "take the node out, then start again from the last checkpoint",
    "yes": "start again from the last checkpoint",
    "bounded": "start again, but only a few times without progress",
    "resume": "submit it again and resume from the last checkpoint",
    "no": "do not start again before something has changed",
}


class Category(NamedTuple):
    """One kind of failure: `owner` is infra, user, scheduler or ambiguous."""

    owner: str
    retry: str
    meaning: str


CATEGORIES = {
    "gpu_hardware": Category(
        "infra", "swap", "a GPU, its memory or its links broke: ECC, NVLink, fallen off the bus"
    ),
    "gpu_driver": Category(
        "infra", "swap", "the driver or its services on the node do not work: no device to be seen"
    ),
    "network": Category("infra", "yes", "a link, an adapter or a name server failed"),
    "comm_timeout": Category(
        "ambiguous", "bounded", "a collective waited too long for some rank; why is not known"
    ),
    "hang": Category("ambiguous", "bounded", "the job lived but made no progress"),
    "rendezvous": Category("infra", "yes", "the ranks did not find each other at the start"),
    "storage": Category("infra", "yes", "a file system or an object store failed to read or write"),
    "disk_full": Category("ambiguous", "no", "no space or no quota was left to write to"),
    "preemption": Category("scheduler", "yes", "the scheduler or the cloud took the machines away"),
    "time_limit": Category("scheduler", "resume", "the job's time was up"),
    "user_cancel": Category("user", "no", "somebody stopped it"),
    "node_failure": Category("infra", "yes", "a whole machine died or was lost"),
    "platform_start": Category(
        "infra", "bounded", "the container, its image or its volumes could not be made ready"
    ),
    "gpu_oom": Category("user", "no", "the memory of a GPU did not suffice"),
    "host_oom": Category("user", "bounded", "the memory of a host or a cgroup did not suffice"),
    "shm_or_fd_limit": Category(
        "user", "no", "shared memory, open files, threads or locked memory ran out"
    ),
    "data_pipeline": Category("user", "no", "a sample, or the code that reads samples, is bad"),
    "checkpoint": Category(
        "user", "no", "a checkpoint is damaged, missing or does not fit: fall back to an older one"
    ),
    "numerics": Category("user", "no", "the loss or its gradients are no longer numbers"),
    "cuda_fault": Category(
        "ambiguous", "bounded", "a kernel did something illegal; if it comes again, swap the node"
    ),
    "compile": Category("user", "no", "a compiler of kernels or graphs failed"),
    "environment": Category(
        "user", "no", "a package, a library or its version is missing or does not fit"
    ),
    "native_crash": Category("ambiguous", "bounded", "a process crashed below Python"),
    "user_code": Category("user", "no", "the program or its arguments are wrong"),
    "unknown": Category("ambiguous", "bounded", "nothing told why"),
}
OWNERS = {name: (category.owner, category.retry) for name, category in CATEGORIES.items()}


# In the order in which a job passes through them; reports keep this order.
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
