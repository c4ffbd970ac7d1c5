"""Files that users write, in the forms that the documentation gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

CHAOS = """
seed = 7

[[fault]]
kind = "kill"
who = 1
at_step = 30

[[fault]]
kind = "terminate"
after_s = 600
attempt = 1
grace_s = 30

[[fault]]
kind = "stop"
who = "random"
every_s = 3600
for_s = 60
times = 3

[[fault]]
kind = "raise"
who = 0
steps_between = [200, 400]
exception = "torch.OutOfMemoryError: CUDA out of memory"

[[fault]]
kind = "disk"
path = "/checkpoints"
mode = "slow"
delay_s = 2
at_step = 5
for_s = 60
node = "node0"

[[fault]]
kind = "corrupt"
path = "/checkpoints"
how = "truncate"
when = "restart"
attempt = [1, 2]

[[fault]]
kind = "network"
device = "eth0"
after_s = 60
for_s = 10

[[fault]]
kind = "data"
delay_s = 0.5
at_step = 9
"""
INLINE = "seed=7; kill rank=1 step=30; terminate after=600 attempt=1 grace=30"
JSON = '{"seed": 9, "fault": [{"kind": "kill", "who": "all", "after_s": 60}]}'

ALERTS = """
[[rule]]
name = "ads trains"
kind = "threshold"
metric = "ett"
where = { team = "ads" }
by = ["model"]
below = 85
over = "1d"
for = "2h"
clear_for = "30min"
severity = "critical"
to = ["oncall", "mail"]
renotify = "4h"
least_jobs = 3

[[rule]]
name = "ads starts"
kind = "burn"
metric = "tts_p90"
where = { team = "ads" }
above = "5min"
over = "30d"
for = "2h"
to = "oncall"

[[rule]]
name = "something changed"
kind = "change"
of = ["slices", "running", "hosts"]
points = 1.5
level = 0.1
history = "60d"
to = "chat"

[to.oncall]
webhook = "https://pager.example.com/v1/events"
headers = { Authorization = "env:PAGER_TOKEN" }
timeout_s = 5

[to.mail]
email = ["team@example.com"]
sender = "headway@example.com"
host = "mail.example.com"
port = 465
tls = "implicit"
user = "headway"
password = "env:MAIL_PASSWORD"

[to.chat]
command = ["./chat.sh", "#training"]
"""

RECIPE = """
keep = 3
release = true
script = "train.py"

[model]
factory = "model:build"
arguments = { rows = 100000 }
weights = ["ema", "model"]
ignore = ["n_averaged", "extra.*"]

[golden]
inputs = "model:golden"
tolerance = 0.01
batch = false

[tables]
int8 = ["tables.*"]
fp16 = "names"
tolerance = 0.1

[tables.prune]
last_use = "use"
within = 1000
tables = ["tables.*"]

[limits]
size_mb = 500
size_growth = 0.1
latency_ms = 5
latency_growth = 0.2

[targets.aoti]
[targets.safetensors]
tolerance = 0.001
[targets.onnx]

[registry]
mlflow = "ctr"
uri = "http://mlflow:5000"
alias = "champion"
"""

SETTINGS = """
auto = false
output = "runs/nightly"
name = "nightly"
restarts = 3
warm = true
hang_watch = false
hang_after = 90.5
compile_cache = "cache"
compile_tier = "precompile"
cache_key = "team.key"
autotune = "autotune.json"
async_save = true
learn = true
store = "store"
labels = "team=ads,model=dlrm"
report = false
"""
PROJECT = """
[project]
name = "job"

[tool.headway]
restarts = 2
report = false
"""

QUOTAS = "tenant,gpus,day\nads,64\nfeed,32,0\nads,48,3.5\n"


def _files(**contents: str) -> Callable[[Path], None]:
    """Each content, by its name with an underscore in place of the dot."""

    def write(files: Path) -> None:
        for name, content in contents.items():
            (files / name.replace("_", ".")).write_text(content.lstrip("\n"))

    return write


def _settings(files: Path) -> None:
    for name, content in (("headway.toml", SETTINGS), ("pyproject.toml", PROJECT)):
        folder = files / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_text(content.lstrip("\n"))


CHAOS_FILES = _files(plan_toml=CHAOS, plan_json=JSON, plan_txt=INLINE)
RECORDERS = {
    "chaos_plan": (CHAOS_FILES, "plans of faults, in each of their forms", ()),
    "alert_rules": (_files(rules_toml=ALERTS), "rules and channels of alerts", ()),
    "publish_recipe": (_files(recipe_toml=RECIPE), "the recipe of a publish", ()),
    "settings": (_settings, "every setting, in both files that may have them", ()),
    "quotas": (_files(quotas_csv=QUOTAS), "quotas for a simulated cluster", ()),
}
