# Stowage on NVIDIA's PyTorch image: its torch and its Transformer Engine, and what pip adds to them.
#
#   docker build -t stowage .
#   mkdir -p runs && docker run --gpus all --ipc=host -v "$PWD/runs:/workspace/stowage/runs" stowage packing=trainer
#
# What follows the image's name are the words of `python train.py`. The container's user has the ids
# 1000:1000; a mounted directory must be writable for it, or run with --user "$(id -u):$(id -g)".

# Another of NVIDIA's PyTorch images can take its place if its torch is within what pyproject.toml
# allows. Their torch is a pre-release, and 2.11.0a0 comes before 2.11: 26.04, with 2.12.0a0, is the
# first that does. 26.09 has Python 3.12, torch 2.14.0a0 and Transformer Engine 2.19.
ARG BASE_IMAGE=nvcr.io/nvidia/pytorch:26.09-py3
FROM ${BASE_IMAGE}

SHELL ["/bin/bash", "-o", "pipefail", "-c"]
WORKDIR /workspace/stowage

# The image's own packages show through and stay as they are: some, like PyYAML, come from Ubuntu, and
# pip cannot replace those, only put a newer one in front. Its own pip does without ensurepip.
RUN python -m venv --system-site-packages --without-pip /opt/venv
ENV VIRTUAL_ENV=/opt/venv
ENV PATH=/opt/venv/bin:$PATH

# What was built to fit together; pip may add to it, and may not put another version in front of it.
ARG KEPT="^(torch|triton|pytorch[-_]triton|transformer[-_]engine|flash[-_]attn|apex|numpy|nvidia[-_]|cuda[-_])"
RUN python -m pip list --format=freeze | grep -iE "$KEPT" > /opt/constraints.txt; \
    for kept in torch transformer.engine; do \
        grep -qi "^$kept==" /opt/constraints.txt || { echo "the base image has no $kept" >&2; exit 1; }; \
    done
ENV PIP_CONSTRAINT=/opt/constraints.txt

# Dependencies first: a change in the sources does not install them anew.
COPY pyproject.toml ./
RUN python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; print(*p["dependencies"], *p["optional-dependencies"]["demo"], sep="\n")' > /tmp/requirements.txt \
 && python -m pip install --no-cache-dir --constraint /opt/constraints.txt --requirement /tmp/requirements.txt \
 && rm /tmp/requirements.txt

COPY LICENSE README.md train.py ./
COPY conf/ conf/
COPY data/ data/
COPY models/ models/
COPY sft/ sft/
COPY hydra_plugins/ hydra_plugins/
RUN python -m pip install --no-cache-dir --constraint /opt/constraints.txt --no-deps --editable . \
 && python -m pip list --format=freeze > /tmp/installed.txt \
 && { ! grep -vxFf /tmp/installed.txt /opt/constraints.txt; } \
 && rm /tmp/installed.txt

# Runs and data sets are written by whoever the container runs as, under any user id.
ARG UID=1000
ARG GID=1000
RUN groupadd --non-unique --gid "$GID" stowage \
 && useradd --non-unique --no-log-init --no-create-home --home-dir /home/stowage --uid "$UID" --gid "$GID" stowage \
 && install --directory --mode 1777 /home/stowage runs datasets
USER ${UID}:${GID}
ENV HOME=/home/stowage \
    USER=stowage \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
VOLUME ["/workspace/stowage/runs", "/workspace/stowage/datasets"]

# Fails here, not at the first run, if a configuration file is missing.
RUN python train.py --cfg job > /dev/null

ARG VERSION=0.1.0
ARG REVISION=unknown
ARG BASE_IMAGE
LABEL org.opencontainers.image.title="Stowage" \
      org.opencontainers.image.description="SFT training that measures who should pack the sequences" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}"

# `docker stop` is then what Ctrl-C is. Process 1 ignores a SIGTERM that it has no handler for.
STOPSIGNAL SIGINT
ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh", "/opt/venv/bin/python", "/workspace/stowage/train.py"]
