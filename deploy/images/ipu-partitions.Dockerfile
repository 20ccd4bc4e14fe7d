# syntax=docker/dockerfile:1
# The released image with Graphcore's vipu command line in it, for the controller of partitions: docs/partitions#install.
# The folder that it is built from has the file vipu.
ARG IMAGE
# hadolint ignore=DL3006
FROM ${IMAGE}
COPY --chown=0:0 --chmod=0755 vipu /usr/local/bin/vipu
