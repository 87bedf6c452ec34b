# Both commands without an installation. This trains what `make train` does, and leaves the results to you in ./runs:
#
#     docker build -t art-gym .
#     mkdir -p runs && docker run --rm --user "$(id -u):$(id -g)" -v "$PWD/runs:/work/runs" art-gym
#
# For an NVIDIA GPU build with `--build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130`, run with `--gpus all`.
FROM python:3.11-slim

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1

WORKDIR /source
COPY . .
# torch first and in the pinned version: another one would give way to the usual index's build, with CUDA.
RUN pip install --no-deps --constraint constraints.txt --extra-index-url "$TORCH_INDEX" torch \
    && pip install --constraint constraints.txt ".[train,serve,mcp,openai]"

# Not root: episodes and programs of a model run here. Whoever `--user` names has a home that can be written.
RUN useradd --create-home trainer && mkdir -p /work/runs && chown -R trainer /work
ENV HOME=/tmp
USER trainer
WORKDIR /work
ENTRYPOINT ["art-trainer"]
CMD ["train", "--recipe", "email"]
