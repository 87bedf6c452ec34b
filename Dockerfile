# Both commands without an installation: `docker build -t art-gym .`, then `docker run --rm -v "$PWD/runs:/work/runs" art-gym`
# trains what `make train` does. For an NVIDIA GPU build with
# `--build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130` and run with `--gpus all`.
FROM python:3.11-slim

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1

WORKDIR /source
COPY . .
# torch first and in the pinned version: another one would give way to the usual index's build, with CUDA.
RUN pip install --no-deps --constraint constraints.txt --extra-index-url "$TORCH_INDEX" torch \
    && pip install --constraint constraints.txt ".[train,serve,mcp,openai]"

# Not root: episodes and programs of a model run here.
RUN useradd --create-home trainer && mkdir -p /work/runs && chown -R trainer /work
USER trainer
WORKDIR /work
ENTRYPOINT ["art-trainer"]
CMD ["train", "--recipe", "email"]
