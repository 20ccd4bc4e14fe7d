"""Write the parts of the Helm chart that the code decides: Chart.yaml, values.schema.json, README.md, the dashboard.

`deploy/release.py` adds to a released chart what only the release knows: its image and its repository.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

import provisioner
from deploy import dashboard
from deploy.chart_schema import property_of
from provisioner.settings import OPTIONS

CHART = Path(__file__).parent / "charts" / "tpu-provisioner"
#: The Deployment sets these from the pod itself.
OF_THE_POD = frozenset({"POD_NAMESPACE", "POD_NAME"})
_TEXT: dict[str, Any] = {"type": "string"}
_FLAG: dict[str, Any] = {"type": "boolean"}
_FREE: dict[str, Any] = {"type": "object"}
_MAP: dict[str, Any] = {"type": "object", "additionalProperties": _TEXT}
_LIST: dict[str, Any] = {"type": "array", "items": _FREE}
_INTERVAL: dict[str, Any] = {
    "type": "string",
    "pattern": "^[0-9]{1,6}(?:ms|s|m|h)$",
    "description": "Time between scrapes.",
}


def files() -> dict[Path, str]:
    """Return the content of every generated file."""
    return {
        CHART / "Chart.yaml": _chart(),
        CHART / "values.schema.json": json.dumps(_schema(), indent=2) + "\n",
        CHART / "README.md": _readme(),
        dashboard.PATH: dashboard.content(),
    }


def main() -> int:
    """Write the files."""
    for path, content in files().items():
        path.write_text(content, encoding="utf-8")
    return 0


def _chart() -> str:
    content = {
        "apiVersion": "v2",
        "name": "tpu-provisioner",
        "description": "Just-in-time TPU node pools for JobSets on Google Kubernetes Engine",
        "type": "application",
        "version": provisioner.__version__,
        # The image's tag, which is the release's tag.
        "appVersion": f"v{provisioner.__version__}",
        # ValidatingAdmissionPolicy is generally available from here on.
        "kubeVersion": ">=1.30.0-0",
        "keywords": ["tpu", "gke", "jobset", "node-pool", "autoscaling", "machine-learning"],
        "annotations": {
            "artifacthub.io/category": "ai-machine-learning",
            "artifacthub.io/license": "Apache-2.0",
            "artifacthub.io/operator": "true",
        },
    }
    return "# Made by `make chart`.\n" + yaml.safe_dump(content, sort_keys=False)


def _schema() -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$comment": "Made by `make chart` from provisioner/settings/options.py.",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "global": {**_FREE, "description": "Not used: Helm hands it to every chart of an umbrella chart."},
            "settings": {
                "type": "object",
                "description": "Environment variables of the controller; see docs/settings.md. A changed one rolls the "
                "pods, and a pod keeps those that it began with.",
                "additionalProperties": False,
                "properties": {
                    option.variable: property_of(option) for option in OPTIONS if option.variable not in OF_THE_POD
                },
            },
            "image": _closed(
                repository={**_TEXT, "description": "The image without its tag. Released charts name their own."},
                tag={**_TEXT, "description": "Empty: the chart's appVersion, which is the release's tag."},
                digest={
                    **_TEXT,
                    "pattern": "^(?:sha256:[0-9a-f]{64})?$",
                    "description": "Takes precedence over the tag.",
                },
                pullPolicy={"enum": ["Always", "IfNotPresent", "Never"], "description": "imagePullPolicy."},
            ),
            "imagePullSecrets": {**_LIST, "description": "Secrets to pull the image with."},
            "replicas": {
                "type": "integer",
                "minimum": 0,
                "description": "With 2 or more they are spread over nodes and zones; one leads.",
            },
            "serviceAccount": _closed(
                annotations={
                    **_MAP,
                    "description": "iam.gke.io/gcp-service-account, where IAM grants the roles to a Google service "
                    "account.",
                }
            ),
            "commonLabels": {**_MAP, "description": "Labels of every object."},
            "podLabels": {**_MAP, "description": "Further labels of the pods."},
            "podAnnotations": {**_MAP, "description": "Further annotations of the pods."},
            "extraArgs": {"type": "array", "items": _TEXT, "description": "Further flags of `tpu-provisioner run`."},
            "extraEnv": {**_LIST, "description": "Further environment variables, such as HTTPS_PROXY."},
            "envFrom": {**_LIST, "description": "ConfigMaps and Secrets whose keys become environment variables."},
            "extraVolumes": {**_LIST, "description": "Volumes of the pod, such as a certificate authority's."},
            "extraVolumeMounts": {**_LIST, "description": "Where the container has them."},
            "resources": {**_FREE, "description": "Requests and limits of the container."},
            "nodeSelector": {**_MAP, "description": "Which nodes the pods run on."},
            "tolerations": {**_LIST, "description": "Taints that the pods tolerate."},
            "affinity": {**_FREE, "description": "Affinity of the pods."},
            "topologySpreadConstraints": {
                **_LIST,
                "description": "In place of those that the chart makes for several replicas.",
            },
            "priorityClassName": {
                **_TEXT,
                "description": "A PriorityClass that exists; empty: the chart makes its own.",
            },
            "podMonitor": _closed(
                enabled={**_FLAG, "description": "Scraping by the Prometheus operator, pod by pod."},
                labels={**_MAP, "description": "Labels that the operator selects by."},
                interval=_INTERVAL,
            ),
            "serviceMonitor": _closed(
                enabled={**_FLAG, "description": "The same by way of the Service; not both."},
                labels={**_MAP, "description": "Labels that the operator selects by."},
                interval=_INTERVAL,
            ),
            "podMonitoring": _closed(
                enabled={**_FLAG, "description": "Scraping by Google Cloud Managed Service for Prometheus."},
                interval=_INTERVAL,
            ),
            "prometheusRule": _closed(
                enabled={**_FLAG, "description": "Alerts, for the Prometheus operator."},
                labels={**_MAP, "description": "Labels that the operator selects by."},
            ),
            "dashboards": _closed(
                enabled={**_FLAG, "description": "A ConfigMap with the dashboard, for Grafana's sidecar."},
                namespace={**_TEXT, "description": "Where the sidecar looks; empty: the release's namespace."},
                labels={**_MAP, "description": "What the sidecar selects by."},
                annotations={**_MAP, "description": "Annotations of the ConfigMap, such as grafana_folder."},
            ),
            "networkPolicy": _closed(
                enabled={**_FLAG, "description": "Deny all traffic but the controller's own."},
                extraEgress={**_LIST, "description": "Further egress rules, such as to a proxy."},
            ),
            "nodeGuard": _closed(
                enabled={
                    **_FLAG,
                    "description": "Hold the right to patch nodes to the cordon, and the end of our own taint, of "
                    "nodes of our own pools.",
                }
            ),
        },
    }


def _closed(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _readme() -> str:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    rows = "\n".join(
        f"| `{name}` | `{json.dumps(default)}` | {meaning} |" for name, default, meaning in _rows(_schema(), values, "")
    )
    return f"""# tpu-provisioner

<!-- Made by `make chart`. -->
Just-in-time TPU node pools for JobSets on Google Kubernetes Engine. docs/install.md in the repository is the page to
follow: what the cluster needs, the rights in Google Cloud, and how to uninstall without leaving node pools behind.

```bash
helm upgrade --install tpu-provisioner oci://REGISTRY/charts/tpu-provisioner --version {provisioner.__version__} \\
  --namespace=tpu-provisioner-system --create-namespace \\
  --set settings.GCP_NODE_SERVICE_ACCOUNT=NODES@PROJECT.iam.gserviceaccount.com
```

On GKE, project, location, zone and cluster are inferred. Every value is checked against values.schema.json: what that
accepts, the controller accepts, unless a list names something twice or settings contradict each other.

| value | default | meaning |
|---|---|---|
{rows}
"""


def _rows(schema: dict[str, Any], values: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any, str]]:
    for name, part in schema["properties"].items():
        if name in values and "properties" in part and "description" not in part:
            yield from _rows(part, values[name], f"{prefix}{name}.")
        elif name in values:
            yield f"{prefix}{name}", values[name], part["description"]


if __name__ == "__main__":
    sys.exit(main())
