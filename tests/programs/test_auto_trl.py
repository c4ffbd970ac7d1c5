"""TRL's own script for supervised fine-tuning, as it ships in the package, by `accelerate launch`.

It resumes only from a checkpoint that it is told of, so it is started by a job script that looks
for the newest one, as job scripts of a cluster do.
"""

from __future__ import annotations

import json
import shlex
from importlib.util import find_spec
from pathlib import Path

from tests.programs.bench import BIN, Bench, Kill, same, slow, well

pytestmark = slow("trl", limit_s=900)

STEPS, EVERY = 90, 30
LAUNCH = ["launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
LAUNCH += ["--mixed_precision", "no", "--dynamo_backend", "no"]
OPTIONS = {
    "model_name_or_path": "model",
    "dataset_name": "data",
    "output_dir": "out",
    "max_steps": STEPS,
    "save_steps": EVERY,
    "per_device_train_batch_size": 1,
    "gradient_checkpointing": "false",
    "learning_rate": "1e-3",
    "use_cpu": "true",
    "bf16": "false",
    "report_to": "none",
    "disable_tqdm": "true",
}
WORDS = ["the", "night", "train", "goes", "on", "and", "stops", "here", "again", "."]


def program(root: Path) -> Bench:
    spec = find_spec("trl")
    assert spec is not None and spec.origin is not None
    script = str(Path(spec.origin).parent / "scripts" / "sft.py")
    options = [word for name, value in OPTIONS.items() for word in (f"--{name}", str(value))]
    launch = shlex.join([str(BIN / "accelerate"), *LAUNCH, script, *options])
    last = "$(ls -d out/checkpoint-* 2>/dev/null | sort -V | tail -n 1)"
    resume = '${last:+--resume_from_checkpoint "$last"}'
    (root / "job.sh").write_text(f"last={last}\nexec {launch} {resume}\n")
    make_model(root / "model")
    (root / "data").mkdir()
    texts = [" ".join(WORDS[(i * j) % 10] for j in range(1, 9)) for i in range(200)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (root / "data" / "train.jsonl").write_text(lines)
    return Bench(root, ["sh", "job.sh"], leaves=["out"])


def make_model(folder: Path) -> None:
    """A tiny one, with a word for each token."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    names = ["<unk>", "<s>", "</s>", "<pad>", *WORDS]
    words = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, "<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(folder)
    torch.manual_seed(1)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = LlamaConfig(vocab_size=len(names), num_attention_heads=2, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)


def test_trl(tmp_path: Path) -> None:
    bench = program(tmp_path)
    bench.plainly()
    plain = weights(tmp_path)
    done = bench.auto(Kill(1, 40, EVERY), Kill(0, 40, EVERY))
    well(bench, done, kills=[1, 0], steps=STEPS, every=EVERY)
    assert same(weights(tmp_path), plain)
    again = bench.auto(Kill(0, 70, EVERY))
    well(bench, again, kills=[0], steps=STEPS, every=EVERY)
    assert same(weights(tmp_path), plain)


def weights(root: Path) -> object:
    import torch
    from safetensors.torch import load_file

    last = root / "out" / f"checkpoint-{STEPS}"
    optimizer = torch.load(last / "optimizer.pt", weights_only=True)
    return load_file(root / "out" / "model.safetensors"), optimizer
