"""Prints docs/settings.md from the one list of options: `make docs`."""

import sys

from provisioner.settings import OPTIONS

_HEAD = """# Settings

Made by `make docs` from `provisioner/settings/options.py`; do not edit.

Settings come from the environment. Whatever is missing or wrong is refused at the start, all of it in one message.
Durations are in Go's form: `10s`, `1m30s`, `2h`.

| variable | default | meaning |
|---|---|---|
"""

_TAIL = """
## Flags of `tpu-provisioner run`

In all of Go's forms: one dash or two, `-leader-elect=false`, `--metrics-bind-address :8080`.

| flag | default | meaning |
|---|---|---|
| `--metrics-bind-address` | `:8080` | where `/metrics` is served; `0` for nowhere |
| `--health-probe-bind-address` | `:8081` | where `/healthz` and `/readyz` are served; `0` for nowhere |
| `--leader-elect` | `false` | elect one leader among several replicas by a Lease in `POD_NAMESPACE` |
| `--kubeconfig` | in-cluster, else `$KUBECONFIG`, else `~/.kube/config` | the cluster; always its current context |
| `--zap-devel`, `--zap-log-level`, `--zap-encoder` | | level debug; the level; `json` for JSON on a terminal too |
| `--zap-stacktrace-level`, `--zap-time-encoding` | | accepted, without effect |
"""


def main() -> None:
    """Print the page."""
    rows = []
    for option in OPTIONS:
        default = "required" if option.default is None else f"`{option.default}`" if option.default else ""
        rows.append(f"| `{option.variable}` | {default} | {option.description} |\n")
    sys.stdout.write(_HEAD + "".join(rows) + _TAIL)


if __name__ == "__main__":
    main()
