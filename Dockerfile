# syntax=docker/dockerfile:1
# The controller and its locked dependencies in a virtual environment, on a slim base, as an unprivileged user. The package
# `rehearsal` is not copied, so the wheel that is built here does not have it.
# This builds for linux/amd64 and linux/arm64: nothing is compiled, every dependency is a wheel with a pinned hash.
# The digest is that of the index of all platforms. It is written here, not in an ARG, because Dependabot updates it
# only here. To use another base: make docker-build BASE=..., which replaces this stage (docs/develop/releasing.md).
FROM python:3.13-slim@sha256:70729b46c69b4f1e97c4822c1af3df53a1476cf5ddc6c087c0c10bc3a5678c2f AS base

FROM base AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore PYTHONDONTWRITEBYTECODE=1
WORKDIR /src
RUN python -m venv --without-pip /opt/tpu-provisioner
COPY requirements/run.txt requirements/build.txt ./
# Files that change seldom come first. Only wheels are installed, so no build script of a dependency runs. Of the
# Kubernetes client only configuration, credentials and TLS are imported: 2 of 126 MB.
RUN python -m pip --python /opt/tpu-provisioner install --no-compile --require-hashes --only-binary=:all: -r run.txt \
 && rm -r /opt/tpu-provisioner/lib/python3.*/site-packages/kubernetes/aio \
    /opt/tpu-provisioner/lib/python3.*/site-packages/kubernetes/client/models/[a-z]*.py \
    /opt/tpu-provisioner/lib/python3.*/site-packages/kubernetes/client/api/[a-z]*.py
# Byte code is compiled once, here, and not at each start: the process may not write, and the base has no byte code of the
# standard library. It is validated by hash, so that it is the same in each build, and unchecked, as nothing in the image
# changes.
RUN PYTHONPYCACHEPREFIX=/opt/tpu-provisioner/pycache python -m compileall -q --invalidation-mode unchecked-hash \
    -x '/(test|tests|idlelib|tkinter|turtledemo|ensurepip|lib2to3|site-packages|config-[^/]*)/' \
    "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" \
 && PYTHONPYCACHEPREFIX=/opt/tpu-provisioner/pycache python -m compileall -q --invalidation-mode unchecked-hash \
    /opt/tpu-provisioner/lib
COPY pyproject.toml README.md LICENSE ./
COPY examples examples
COPY provisioner provisioner
RUN python -m venv --without-pip /opt/build \
 && python -m pip --python /opt/build install --no-compile --require-hashes --only-binary=:all: -r build.txt \
 && python -m pip --python /opt/build wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
 && python -m pip --python /opt/tpu-provisioner install --no-compile --no-deps --no-index /wheels/*.whl \
 && rm /opt/tpu-provisioner/bin/tpu-rehearsal \
 && PYTHONPYCACHEPREFIX=/opt/tpu-provisioner/pycache python -m compileall -q --invalidation-mode unchecked-hash \
    /opt/tpu-provisioner/lib/python3.*/site-packages/provisioner \
 && /opt/tpu-provisioner/bin/tpu-provisioner --version

FROM base
ARG VERSION=unknown
ARG REVISION=unknown
ARG CREATED=unknown
ARG SOURCE=unknown
LABEL org.opencontainers.image.title="tpu-provisioner" \
      org.opencontainers.image.description="Creates a TPU node pool on Google Kubernetes Engine when pods need it, and deletes it when nothing does" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.source="${SOURCE}"
# Owned by root, so that the process cannot change its own code even if the file system is not read-only.
COPY --from=build /opt/tpu-provisioner /opt/tpu-provisioner
# Manifests of the Go provisioner start this name; it runs `tpu-provisioner run`.
COPY --from=build /opt/tpu-provisioner/bin/tpu-provisioner /manager
# Large blocks of memory go back to the system at once: else each thread keeps as much as its largest answer took.
ENV MALLOC_MMAP_THRESHOLD_=131072 \
    PATH=/opt/tpu-provisioner/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONPYCACHEPREFIX=/opt/tpu-provisioner/pycache \
    PYTHONUNBUFFERED=1
# A number, so that Kubernetes can verify runAsNonRoot without /etc/passwd.
USER 65532:65532
WORKDIR /
# 8080 metrics, 8081 /healthz and /readyz: Kubernetes probes them, so there is no HEALTHCHECK.
EXPOSE 8080 8081
ENTRYPOINT ["tpu-provisioner", "run"]
